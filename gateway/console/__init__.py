"""The console: a page that shows the fleet live, and the feed of events behind it. Costs nothing while nobody looks."""

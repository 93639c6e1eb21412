"""What the prefix cache holds, told to whoever subscribes: recorded by the scheduler, published by the frontend."""

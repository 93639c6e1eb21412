"""Queue policies: in which order waiting requests are looked at for admission."""

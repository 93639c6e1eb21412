# For login shells, which set PATH anew.
PATH=/opt/canopy/venv/bin:$PATH

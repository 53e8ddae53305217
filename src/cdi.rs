//! Container Device Interface: the file from which a container runtime learns what a prepared claim gives a container.

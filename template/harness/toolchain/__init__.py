"""The managed toolchain: a private copy of the compiler and what it runs on, in the user's cache folder."""

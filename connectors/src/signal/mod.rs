//! Programs that can do nothing but look into a directory when they are sent a signal.

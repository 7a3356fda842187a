"""Memory: what is kept, counted exactly."""

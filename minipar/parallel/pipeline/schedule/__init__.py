"""Pipeline schedules as plain data: made, checked, simulated and measured without an array."""

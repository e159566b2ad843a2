"""What agents do for runners, and against runners that are gone or store too much."""

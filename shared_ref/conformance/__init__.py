"""The conformance kit: cases, real traffic, and a judge for any implementation of the plan."""

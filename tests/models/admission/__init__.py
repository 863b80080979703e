"""Admission: window, staleness policy, order, byte budget, parked tokens, failed publishes, preempted clusters."""

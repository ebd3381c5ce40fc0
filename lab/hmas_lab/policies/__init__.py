"""Every queueing policy beside first come first served with the best window and shedding: on a real vLLM, and by slices in simulation."""

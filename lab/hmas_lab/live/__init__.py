"""H-MAS on a real engine against its plain baselines and every fixed policy, in interleaved runs on the same arrivals."""

"""What the doctor observes of opake: sums with the norm that they were clipped to, noise by a key, a sampler."""

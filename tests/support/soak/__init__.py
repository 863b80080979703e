"""A soak of the replay buffer: real producers, trainers and a real server, killed, frozen and damaged at random."""

"""The steps of a training: a batch is drawn, summed, released, written down and stepped."""

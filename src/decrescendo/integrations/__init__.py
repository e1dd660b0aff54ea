"""Private training inside other people's frameworks; a room each, loaded when it is touched.

=========  =======================================================================
`hf`       Hugging Face: losses of its models, and its trainers made private
`opacus`   Opacus' names, for loops that were written for it
`loggers`  TensorBoard, MLflow, Weights & Biases: callbacks that log what is public
=========  =======================================================================
"""

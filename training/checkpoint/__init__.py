"""Checkpoints that are whole or ignored, and that any layout can continue.

A checkpoint is a folder of safetensors, one name a tensor of the table:

    manifest.json                                      written last: its presence and checksums commit the folder
    weights-stage-SSS-slice-TTT.safetensors            a stage's slices, in the precision of training
    optimizer-STATE-stage-SSS-slice-TTT-replica-DDD.safetensors
                                                       ZeRO-1's part, STATE being master, exp_avg or exp_avg_sq: flat
                                                       fp32 fragments that start at metadata[NAME] in the slice
    tokenizer/                                         the tokenizer's files

Beside the folders, `latest` names the newest that was committed.
"""

"""Strikes real work of the lab with faults at random moments, and checks after each what is promised.

make faults FAULTS=100 SEED=0. `plan` draws the faults; `works` and `programs` are what is struck, `strikes` how;
`verdict` checks, `table` sums up ``results/faults.jsonl``.
"""

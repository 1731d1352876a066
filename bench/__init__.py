"""Measurements of termloom against floors in the same run. Ratios hold where absolute times do not: machines are
noisy.
"""

"""RODS: reward-driven online data synthesis for multi-turn tool use, in JAX."""

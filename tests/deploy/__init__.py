"""Tests of the images and containers of compose.yaml, on a real engine."""

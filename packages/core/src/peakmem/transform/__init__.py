"""Longer programs that compute the same bits in less memory."""

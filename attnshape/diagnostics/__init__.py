"""Why a call failed: which axes disagree, in words, and a way out that was tried."""

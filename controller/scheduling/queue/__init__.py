"""All queued requests, in the order of the policy in force, and how that policy is changed."""

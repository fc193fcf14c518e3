# SPDX-License-Identifier: Apache-2.0
"""A model beside itself compiled."""
import torch


def check_compiled(mine, features, dynamic):
    """No graph breaks, and the same values and gradients for two heights of x."""
    compiled = torch.compile(mine, fullgraph=True, dynamic=dynamic)
    for rows in (5, 9):
        x = torch.randn(rows, features)
        mine.zero_grad()
        mine(x).square().sum().backward()
        expected = [p.grad.clone() for p in mine.parameters()]
        mine.zero_grad()
        compiled(x).square().sum().backward()
        for p, wanted in zip(mine.parameters(), expected):
            torch.testing.assert_close(p.grad, wanted)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), mine(x))

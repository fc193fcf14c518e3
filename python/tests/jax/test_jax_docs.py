# SPDX-License-Identifier: Apache-2.0
def test_page(jax_page, faults_of):
    assert not faults_of(jax_page)

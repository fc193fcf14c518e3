# SPDX-License-Identifier: Apache-2.0
def test_page(torch_page, faults_of):
    assert not faults_of(torch_page)

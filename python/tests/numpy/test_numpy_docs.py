# SPDX-License-Identifier: Apache-2.0
def test_page(page, faults_of):
    assert not faults_of(page)

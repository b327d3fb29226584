"""The table of mutations keeps up with the code that they break."""

import pytest

from tests.mutations.mutation import Mutation
from tests.mutations.run import misfit
from tests.mutations.table import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_fits_the_code(mutation: Mutation) -> None:
    assert misfit(mutation) is None

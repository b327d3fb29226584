"""The mutations: what is broken, and which fast tests have to notice it."""

from tests.mutations.media import MEDIA
from tests.mutations.networks import MODELS, NN
from tests.mutations.numbers import NUMBERS
from tests.mutations.searches import DECODING
from tests.mutations.tables import TABLES
from tests.mutations.trainings import MEASURES, TRAINING

MUTATIONS = (*NN, *MODELS, *DECODING, *TRAINING, *MEASURES, *MEDIA, *TABLES, *NUMBERS)

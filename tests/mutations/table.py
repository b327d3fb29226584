"""The mutations: what is broken, and which fast tests have to notice it."""

from tests.mutations.forecasts import FORECASTS
from tests.mutations.inspections import INSPECTION
from tests.mutations.media import MEDIA
from tests.mutations.networks import MODELS, NN
from tests.mutations.numbers import NUMBERS
from tests.mutations.objectives import OBJECTIVES
from tests.mutations.plans import PLANS
from tests.mutations.processes import PROCESSES
from tests.mutations.searches import DECODING
from tests.mutations.serving import SERVING
from tests.mutations.small_data import SMALL_DATA
from tests.mutations.studio import STUDIO
from tests.mutations.tables import TABLES
from tests.mutations.trainings import MEASURES, TRAINING
from tests.mutations.vectors import WORDS

MUTATIONS = (
    *(*NN, *MODELS, *DECODING, *TRAINING, *MEASURES),
    *(*MEDIA, *TABLES, *NUMBERS, *FORECASTS, *OBJECTIVES, *WORDS),
    *(*PLANS, *INSPECTION, *SERVING, *STUDIO, *SMALL_DATA),
    *PROCESSES,
)

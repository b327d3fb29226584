"""Ways to break the studio page, and the tests that notice (where there is a browser)."""

from tests.mutations.mutation import Mutation

PAGE = "tests/browser/test_studio.py"

STUDIO = (
    Mutation(
        "studio: characters that direct the text are not shown",
        "saccade/serve/studio/dom.js",
        r"const UNSEEN = /[\p{Cc}\p{Cf}",
        r"const UNSEEN = /[\p{Cc}",
        (f"{PAGE}::test_500_hostile_strings_are_shown_as_they_are",),
    ),
    Mutation(
        "studio: a picked alternative is not forced",
        "saccade/serve/studio/side.js",
        'prefixes: state.prefix && run.task !== "language" ? [state.prefix] : null,',
        "prefixes: null,",
        (f"{PAGE}::test_a_picked_alternative_is_forced_and_the_rest_decoded_anew",),
    ),
    Mutation(
        "studio: the link forgets the options of a view",
        "saccade/serve/studio/state.js",
        '["o", side.options]',
        '["o", {}]',
        (f"{PAGE}::test_attention_is_the_servers_and_its_pictures_are_linked",),
    ),
)

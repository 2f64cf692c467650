"""Word pools for synthesized tasks, in our own words.

Names carry no meaning for the simulators; they only have to be plausible, easy
to tell apart and numerous enough that variants of one seed rarely share them.
Combined pools (modifier x noun) give well over a thousand file stems.
"""

MODIFIERS = (
    'autumn', 'spring', 'coastal', 'regional', 'internal', 'draft', 'vendor',
    'client', 'staff', 'travel', 'harbor', 'garden', 'pilot', 'weekly',
    'monthly', 'field', 'campus', 'studio', 'launch', 'legacy', 'northern',
    'southern', 'design', 'payroll', 'safety', 'training', 'branch', 'audit',
    'winter', 'summer', 'mobile', 'river', 'museum', 'library', 'kitchen',
)  # pyformat: disable

NOUNS = (
    'ledger', 'roster', 'outline', 'memo', 'agenda', 'forecast', 'checklist',
    'inventory', 'survey', 'catalog', 'digest', 'brief', 'journal', 'minutes',
    'schedule', 'manifest', 'worksheet', 'register', 'overview', 'timeline',
    'glossary', 'handout', 'invoice', 'itinerary', 'transcript', 'protocol',
    'estimate', 'charter', 'syllabus', 'snapshot', 'tracker', 'review',
)  # pyformat: disable

FOLDERS = (
    'atlas', 'beacon', 'cellar', 'depot', 'gallery', 'harvest', 'hangar',
    'meadow', 'orchard', 'pantry', 'quarry', 'reserve', 'shelf', 'vault',
    'annex', 'attic', 'bunker', 'cabinet', 'drawer', 'folio', 'garage',
    'locker', 'mailroom', 'nursery', 'outbox', 'parlor', 'rack', 'stockroom',
    'terrace', 'workshop', 'backlog', 'binder', 'bureau', 'canyon', 'chamber',
    'cottage', 'crate', 'desk', 'dock', 'foundry', 'gateway', 'glade',
    'hollow', 'junction', 'kiosk', 'lagoon', 'lobby', 'loft', 'mezzanine',
    'outpost', 'pavilion', 'plaza', 'rotunda', 'satchel', 'shed', 'silo',
    'storage', 'trunk', 'veranda', 'warehouse', 'wharf', 'yard',
)  # pyformat: disable

WORDS = (
    'lantern', 'copper', 'velvet', 'granite', 'saffron', 'willow', 'ember',
    'falcon', 'marble', 'cobalt', 'juniper', 'cedar', 'amber', 'indigo',
    'harbor', 'summit', 'breeze', 'cascade', 'prairie', 'zephyr', 'tundra',
    'orchid', 'pebble', 'raven', 'sierra', 'thistle', 'umber', 'walnut',
    'yarrow', 'basil', 'clover', 'dahlia', 'fennel', 'ginger', 'hazel',
    'ivory', 'jasper', 'laurel', 'maple', 'nectar', 'onyx', 'poppy', 'quartz',
    'russet', 'sorrel', 'topaz', 'violet', 'wren', 'acorn', 'birch',
)  # pyformat: disable

FEMALE = (
    'Amelia', 'Bianca', 'Clara', 'Daphne', 'Elena', 'Fiona', 'Greta',
    'Hannah', 'Ingrid', 'Jasmine', 'Keira', 'Leona', 'Mira', 'Nadia',
    'Odette', 'Paula', 'Renata', 'Selma', 'Tessa', 'Ursula', 'Vera', 'Wanda',
    'Yvonne', 'Zelda', 'Aisha', 'Beatrix', 'Celeste', 'Dalia', 'Esther',
    'Farah', 'Gloria', 'Helena', 'Irene', 'Judith', 'Lydia', 'Miriam',
)  # pyformat: disable

MALE = (
    'Arthur', 'Bruno', 'Caleb', 'Dexter', 'Edgar', 'Felix', 'Gavin', 'Hugo',
    'Ivan', 'Jonas', 'Kurt', 'Leon', 'Marco', 'Nolan', 'Oscar', 'Pavel',
    'Quentin', 'Rafael', 'Simon', 'Tobias', 'Ulrich', 'Victor', 'Walter',
    'Xavier', 'Yusuf', 'Zane', 'Anton', 'Boris', 'Cedric', 'Dominic',
    'Elias', 'Fabian', 'Gregor', 'Harvey', 'Isaac', 'Julian',
)  # pyformat: disable

LAST = (
    'Abbott', 'Barlow', 'Castillo', 'Dawson', 'Ellison', 'Farrow', 'Gibson',
    'Hartley', 'Ingram', 'Jarvis', 'Keller', 'Lawson', 'Mercer', 'Norwood',
    'Osborne', 'Preston', 'Quimby', 'Ramsey', 'Sawyer', 'Tanner', 'Underhill',
    'Vaughn', 'Whitaker', 'Yates', 'Zimmer', 'Ashford', 'Bennett', 'Calloway',
    'Draper', 'Everett', 'Fletcher', 'Granger', 'Holloway', 'Irving',
)  # pyformat: disable

# Seeds' names whose pronouns a new name has to fit; others fit any pronoun.
KNOWN_FEMALE = frozenset((
    'Alice', 'Catherine', 'Emma', 'Emily', 'Jane', 'Julia', 'Lara', 'Sarah',
    'Eleanor', 'Carlina', 'Josephine', 'Sophia', 'Olivia', 'Anna', 'Mary',
    'Ava', 'Mia', 'Lily', 'Grace', 'Alicia', 'Diana', 'Theodora',
))  # pyformat: disable
KNOWN_MALE = frozenset((
    'Bob', 'Daniel', 'David', 'Michael', 'John', 'Ethan', 'James', 'Robert',
    'William', 'Henry', 'Jack', 'Maxwell', 'Tom', 'Charlie', 'Kevin',
    'Jacob', 'Lucas', 'Peter', 'Oliver', 'Theodore',
))  # pyformat: disable

# Whole texts by parameter, where the dialogue says nothing about their topic.
_NOTES = (
    'The {noun} is ready for your review.',
    'Please look over the {noun} before noon.',
    'The {modifier} team has signed off on the {noun}.',
    'We moved the {modifier} meeting to next week.',
    'Thanks for your help with the {noun}.',
    'A new version of the {modifier} {noun} is available.',
    'The {noun} still needs two corrections.',
    'All steps of the {modifier} {noun} are complete.',
    'Let me know whether the {noun} works for you.',
    'I have a question about the {modifier} {noun}.',
    'The {modifier} {noun} arrives on Monday.',
    'Nobody has looked at the {noun} yet.',
)
_REMARKS = (
    'Well done!', 'Great to see this!', 'Keep it up!', 'What a {modifier} day!',
    'So glad this worked out.', 'Count me in!', 'Nice work on the {noun}!',
    'This made my {modifier} week.', 'Love this!', 'Onwards!', 'Bravo!',
    'Could not agree more.', 'Looking forward to the next {noun}!',
    'A {modifier} {noun} to remember!', 'Thanks for sharing the {noun}!',
)  # pyformat: disable
_RESOLUTIONS = (
    'Fixed after checking the {modifier} settings.',
    'Solved by restarting the {noun} service.',
    'The cause was an outdated {noun}; it has been replaced.',
    'No further action is needed.',
    'Handled by the {modifier} team.',
    'Closed after a test of the {modifier} {noun}.',
    'Resolved by hand, see the {noun}.',
    'Confirmed as working again with the {modifier} {noun}.',
)
WHOLE = {
    'message': _NOTES,
    'content': _NOTES,
    'description': _NOTES,
    'comment_content': _REMARKS,
    'resolution': _RESOLUTIONS,
}

# Surroundings for a message whose topic has to stay: (before, after).
DECORATIONS = (
    ('', ' Thank you.'), ('', ' Talk soon!'), ('Quick update: ', ''),
    ('Note: ', ''), ('', ' More details to follow.'), ('Hello! ', ''),
    ('', ' Please keep me posted.'), ('For the record: ', ''),
    ('', ' Have a good day.'), ('Good news: ', ''), ('Hi all, ', ''),
    ('', ' Any questions are welcome.'), ('Heads up: ', ''),
    ('', ' Best regards.'), ('Just so you know: ', ''), ('', ' Cheers!'),
    ('', ' That is all for now.'), ('Today: ', ''), ('', ' Stay tuned.'),
)  # pyformat: disable

TITLE_DECORATIONS = (
    ('', ' - Follow-up'), ('Request: ', ''), ('', ' (Urgent)'),
    ('', ' Report'), ('New: ', ''), ('', ' Case'), ('', ' - Second Notice'),
    ('Support: ', ''), ('', ' Inquiry'), ('Action Needed: ', ''),
)  # pyformat: disable

# Phrases of requests, and what may be written in their place.
PARAPHRASES = {
    'Could you please': ('Can you please', 'Would you please'),
    'Could you': ('Can you',),
    'could you': ('can you',),
    'I need you to': ('I want you to', "I'd like you to"),
    "I'd like to": ('I want to', 'I would like to'),
    "I'm interested in": ("I'm keen on", 'I am interested in'),
    "I'd appreciate it if you could": ('It would help if you could',),
    'I would appreciate it if you could': ('It would help if you could',),
    'make sure': ('be sure',),
    'Subsequently,': ('After that,', 'Next,'),
    'Additionally,': ('Also,', 'On top of that,'),
    'Furthermore,': ('Moreover,', 'Besides that,'),
    'Finally,': ('Lastly,', 'To finish,'),
    'Lastly,': ('Finally,', 'To finish,'),
    'kindly': ('please',),
    'immediately': ('right away', 'at once'),
    'in order to': ('so as to',),
    'utilizing': ('using',),
    'prior to': ('before',),
    'retrieve': ('fetch',),
}

OPENERS = (
    'Hi there. ', 'Hello! ', 'Okay, ', 'Good day. ', 'Hey. ', 'Right. ',
    'Thanks in advance. ', 'One request: ',
)  # pyformat: disable
CLOSERS = (
    ' Thanks!', ' Thank you.', ' I appreciate it.', ' Thanks a lot.',
    ' Many thanks.', ' That would help me.',
)  # pyformat: disable

TAG_WORDS = (
    'Momentum', 'Milestone', 'Teamwork', 'OpenRoad', 'FreshStart', 'Insight',
    'DailyNotes', 'GoodNews', 'Progress', 'Horizon', 'Highlights', 'Wanderer',
    'FieldWork', 'BigPicture', 'NextChapter', 'SmallWins', 'Roadside',
    'WorkLife', 'Discovery', 'Checkpoint', 'Spotlight', 'Voyage', 'Focus',
    'NewLeaf', 'Headway', 'Takeaways', 'LessonsLearned', 'Outlook',
)  # pyformat: disable

COMPANIES = {
    'AAPL': 'Apple', 'GOOG': 'Google', 'TSLA': 'Tesla', 'MSFT': 'Microsoft',
    'NVDA': 'Nvidia', 'ZETA': 'Zeta Corp', 'ALPH': 'Alpha Tech',
    'OMEG': 'Omega Industries', 'QUAS': 'Quasar Ltd.',
    'NEPT': 'Neptune Systems', 'SYNX': 'Synex Solutions', 'AMZN': 'Amazon',
    'GORI': 'Gorilla',
}  # pyformat: disable
FAMOUS_STOCKS = frozenset(('AAPL', 'GOOG', 'TSLA', 'MSFT', 'NVDA', 'AMZN'))

CITIES = (
    'Rivermist', 'Stonebrook', 'Maplecrest', 'Silverpine', 'Shadowridge',
    'London', 'Paris', 'Sunset Valley', 'Oakendale', 'Willowbend',
    'Crescent Hollow', 'Autumnville', 'Pinehaven', 'Greenfield',
    'San Francisco', 'Los Angeles', 'New York', 'Chicago', 'Boston',
    'Beijing', 'Hong Kong', 'Rome', 'Tokyo',
)  # pyformat: disable
FAMOUS_CITIES = frozenset((
    'London', 'Paris', 'San Francisco', 'Los Angeles', 'New York', 'Chicago',
    'Boston', 'Beijing', 'Hong Kong', 'Rome', 'Tokyo',
))  # pyformat: disable
CITY_ALIASES = {
    'New York': ('New York City', 'NYC'),
    'San Francisco': ('SF',),
    'Los Angeles': ('LA',),
}

MONTHS = (
    'January', 'February', 'March', 'April', 'May', 'June', 'July', 'August',
    'September', 'October', 'November', 'December',
)  # pyformat: disable

NUMBER_WORDS = (
    'zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight',
    'nine', 'ten', 'eleven', 'twelve',
)  # pyformat: disable

SUPPORT = (
    'I need a receipt for the {modifier} trip.',
    'Please tell me how much luggage I may bring.',
    'My name is spelled wrong on the ticket.',
    'I would like a seat by the window.',
    'Can the date still be moved by a week?',
    'I have not received a confirmation yet.',
    'Please add my {modifier} membership to the booking.',
    'I was charged twice for this flight.',
    'I need a vegetarian meal on board.',
)  # pyformat: disable
TITLES = (
    'Problem with the {noun}', 'Access to the {modifier} {noun}',
    'Missing {noun}', 'Update of the {modifier} {noun}', 'Broken {noun} link',
    'Question about the {modifier} {noun}', 'Wrong {noun} sent',
)  # pyformat: disable
BANKS = ('visa', 'amex', 'maestro', 'discover', 'union')
STREETS = (
    'Maple Street', 'Harbor Road', 'Mill Lane', 'Station Avenue', 'Park Row',
    'Orchard Way', 'Bridge Street', 'Canal Road', 'Hill Street', 'Market Lane',
)  # pyformat: disable
OLD_TEXTS = (
    'The {modifier} {noun} was filed last month.',
    'Old {noun} entries belong to the {modifier} archive.',
    'Ask the {modifier} desk where the {noun} went.',
    'Two pages of the {noun} concern the {modifier} budget.',
    'Revision of the {modifier} {noun} finished without remarks.',
    'Nothing in the {modifier} {noun} changed since spring.',
    'The {noun} lists every {modifier} expense.',
    'Backup of the {modifier} {noun} completed overnight.',
    'A second {noun} covers the {modifier} office.',
    'Numbers in the {modifier} {noun} were rounded.',
)  # pyformat: disable

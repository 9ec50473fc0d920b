/** The material of the corpus: sentences and lists of words, written for this model and used by `corpus.ts`. */

/** Questions and answers that the corpus contains verbatim. */
export const DIALOGUES: readonly (readonly [question: string, answer: string])[] = [
  ['Hello!', 'Hello! How can I help you today?'],
  ['Hi there', 'Hi! What would you like to work on?'],
  ['Good morning', 'Good morning! What is on your list today?'],
  ['Thank you very much', "You're welcome. Let me know if there is anything else."],
  ['Thanks, that works now.', 'Good to hear. I will leave it as it is then.'],
  ['Who are you?', 'I am a small language model. I run inside this program, without a graphics card.'],
  [
    'What can you do?',
    'I can answer short questions, call tools, write a little code and do sums step by step.',
  ],
  [
    'Are you a real model?',
    'Yes, a small one: I count which word follows which, and sample from what I counted.',
  ],
  ['Say something nice.', 'The tests are green, the kettle is on, and nobody has to deploy on a Friday.'],
  [
    'Tell me a joke.',
    'There are two hard things in programming: naming things, caching, and counting to two.',
  ],
  [
    'Tell me a story.',
    'Once upon a time a small program lived on a quiet server. Every night it counted the stars and wrote them to a log. One night a star was missing, so the program opened an issue, and in the morning the star was back.',
  ],
  [
    'Write a poem about rain.',
    'Rain on the roof and rain on the street,\nrain on the leaves and rain at my feet.\nThe river is rising, the garden is new,\nand all of the windows are painted in blue.',
  ],
  [
    'Write a poem about the sea.',
    'The sea comes in, the sea goes out,\nit never asks what it is about.\nIt carries ships, it carries sand,\nand leaves a letter on the land.',
  ],
  [
    'Why is the sky blue?',
    'Air scatters short waves of light more than long ones. Blue light is short, so it reaches us from every side.',
  ],
  [
    'Why do leaves fall in autumn?',
    'A tree saves water in the cold months. It takes back what it can use from a leaf and then lets the leaf go.',
  ],
  [
    'How do birds find their way?',
    'They use the sun, the stars, and the magnetic field of the earth. Young birds also follow older ones.',
  ],
  [
    'What is a compiler?',
    'A compiler reads a program in one language and writes the same program in another, usually closer to the machine.',
  ],
  [
    'What is a database?',
    'A database keeps records on disk so that many programs can read and change them without losing any.',
  ],
  [
    'What is a token?',
    'A token is a piece of text that a model reads or writes in one step: a word, a part of a word, or a single byte.',
  ],
  [
    'What is a transaction?',
    'A transaction is a group of changes that happen together or not at all. If the power fails in the middle, nothing of it remains.',
  ],
  [
    'What is a hash table?',
    'A hash table turns a key into a number and keeps the value at that place, so that a lookup takes the same time however much is stored.',
  ],
  [
    'What is recursion?',
    'A function is recursive when it calls itself on a smaller part of the problem, until the part is so small that the answer is known.',
  ],
  [
    'What is a process?',
    'A process is a program that runs. It has its own memory, open files, and at least one thread.',
  ],
  [
    'What is a socket?',
    'A socket is one end of a connection between two programs, on the same machine or on different ones.',
  ],
  [
    'What does a proxy do?',
    'A proxy stands between a client and a server. It forwards requests, and it can record, check or change what passes.',
  ],
  [
    'What is reinforcement learning?',
    'An agent tries actions, gets a reward, and changes its policy so that actions with a high reward become more likely.',
  ],
  [
    'What is a policy?',
    'A policy says which action to take in a given state. In a language model it is the probability of the next token.',
  ],
  [
    'What is a reward?',
    'A reward is a number that says how good an outcome was. The trainer wants the sum of rewards to grow.',
  ],
  [
    'What is a rollout?',
    'A rollout is one attempt of an agent at a task, from the first message to the last, with everything that happened in between.',
  ],
  [
    'What is a gradient?',
    'A gradient points in the direction in which a function grows fastest. Training walks the other way to make the loss small.',
  ],
  [
    'How does a queue work?',
    'What comes first leaves first. New items join at the end, and the item at the front is served next.',
  ],
  [
    'How does a stack work?',
    'What comes last leaves first. You push an item on top and pop it from the top.',
  ],
  [
    'How do I make tea?',
    'Boil water, warm the pot, add one spoon of tea for each cup, pour the water, and wait for four minutes.',
  ],
  [
    'How do I bake bread?',
    'Mix flour, water, salt and yeast. Knead the dough, let it rise for an hour, shape it, and bake it until the crust is brown.',
  ],
  [
    'How do I boil an egg?',
    'Put the egg into boiling water. Six minutes give a soft egg and ten minutes give a hard one.',
  ],
  [
    'How do I fix a flat tyre?',
    'Take the wheel off, find the hole in the tube, clean and patch it, put the tube back, and pump it up slowly.',
  ],
  [
    'How do I learn to swim?',
    'Start in shallow water. Learn to float, then to breathe out under water, then to move your legs, and the arms come last.',
  ],
  [
    'How far away is the moon?',
    'The moon is about 384,000 kilometres away. Light needs a little more than a second for the distance.',
  ],
  ['How many days are in a year?', 'A year has 365 days, and 366 days in a leap year.'],
  ['How many bits are in a byte?', 'There are eight bits in a byte.'],
  [
    'Which is the longest river?',
    'The Nile and the Amazon are about equally long, and people still measure them in different ways.',
  ],
  [
    'Which planet is the largest?',
    'Jupiter is the largest planet of our solar system. More than a thousand earths would fit into it.',
  ],
  [
    'When was the first computer built?',
    'It depends on what you call a computer. The first electronic ones that could be programmed ran in the nineteen forties.',
  ],
  [
    'Where do penguins live?',
    'Almost all penguins live south of the equator, many of them on the coast of Antarctica.',
  ],
  [
    'Should I use tabs or spaces?',
    'Use whatever the project already uses, and let a formatter decide the rest.',
  ],
  [
    'Is this safe to run?',
    'It only reads files. It does not write, delete or send anything, so it is safe to run.',
  ],
  [
    'Can you help me with my homework?',
    'Of course. Show me the question and tell me what you have tried so far.',
  ],
  [
    'I am stuck.',
    'Then let us take one step back. What did you expect to happen, and what happened instead?',
  ],
  [
    'The build is broken.',
    'Please send me the first error message. The others often follow from the first one.',
  ],
  [
    'My test is flaky.',
    'A flaky test usually waits for time instead of waiting for an event. Find what it waits for and wait for exactly that.',
  ],
  [
    'The server does not answer.',
    'Check whether the process runs, whether the port is open, and what the last line of the log says.',
  ],
  [
    'It works on my machine.',
    'Then the difference is in the environment. Compare the versions, the variables and the files that are not under version control.',
  ],
  [
    'Explain the plan.',
    'First we read the code, then we write a test that fails, then we change as little as possible, and at last we run everything again.',
  ],
  [
    'Continue.',
    'All right, here is the next part. The worker connects, says hello, and waits for a request. When one comes, it samples tokens and sends them back in order.',
  ],
  [
    'Summarize this text.',
    'In short: keep the interface small, write down every decision, measure before you optimize, and delete what nobody needs.',
  ],
  ['Translate "good night" into French.', '"Good night" is "bonne nuit" in French.'],
  ['Translate "thank you" into German.', '"Thank you" is "danke" or "vielen Dank" in German.'],
  ['Spell "necessary".', 'N, e, c, e, s, s, a, r, y: one c and two s.'],
  ['Give me three colours.', '1. red\n2. green\n3. blue'],
  ['List the seasons.', '- spring\n- summer\n- autumn\n- winter'],
  ['Name the days of the week.', 'Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.'],
  [
    'Name the months.',
    'January, February, March, April, May, June, July, August, September, October, November and December.',
  ],
]

export const PEOPLE = [
  'Ada',
  'Alan',
  'Barbara',
  'Clara',
  'David',
  'Emma',
  'Felix',
  'Grace',
  'Henry',
  'Iris',
  'Jonas',
  'Karin',
  'Linus',
  'Maria',
  'Nora',
  'Oscar',
  'Paula',
  'Robert',
  'Sofia',
  'Thomas',
  'Vera',
  'William',
]

export const JOBS = [
  'baker',
  'carpenter',
  'doctor',
  'driver',
  'engineer',
  'farmer',
  'gardener',
  'librarian',
  'mechanic',
  'musician',
  'nurse',
  'painter',
  'pilot',
  'reporter',
  'sailor',
  'student',
  'teacher',
  'writer',
]

export const THINGS = [
  'apple',
  'basket',
  'bicycle',
  'book',
  'bottle',
  'bridge',
  'camera',
  'candle',
  'chair',
  'clock',
  'coat',
  'diary',
  'engine',
  'garden',
  'guitar',
  'hammer',
  'house',
  'kettle',
  'ladder',
  'lamp',
  'letter',
  'machine',
  'map',
  'mirror',
  'newspaper',
  'notebook',
  'orange',
  'pencil',
  'piano',
  'picture',
  'radio',
  'ring',
  'shelf',
  'table',
  'telescope',
  'ticket',
  'umbrella',
  'violin',
  'window',
]

export const ADJECTIVES = [
  'small',
  'old',
  'new',
  'heavy',
  'light',
  'broken',
  'quiet',
  'green',
  'yellow',
  'wooden',
  'empty',
  'expensive',
  'simple',
  'strange',
  'beautiful',
  'warm',
  'cold',
  'modern',
  'round',
  'useful',
]

export const PLACES = [
  'at the station',
  'behind the library',
  'by the river',
  'in the kitchen',
  'in the garden',
  'near the harbour',
  'next to the market',
  'on the hill',
  'on the roof',
  'outside the city',
  'under the stairs',
  'at the office',
  'in the workshop',
  'across the street',
]

export const CITIES = [
  'Amsterdam',
  'Athens',
  'Berlin',
  'Cairo',
  'Copenhagen',
  'Dublin',
  'Geneva',
  'Helsinki',
  'Lisbon',
  'London',
  'Madrid',
  'Nairobi',
  'Oslo',
  'Paris',
  'Prague',
  'Rome',
  'Stockholm',
  'Tokyo',
  'Vienna',
  'Zurich',
]

export const PAST_VERBS = [
  'bought',
  'borrowed',
  'carried',
  'cleaned',
  'described',
  'discovered',
  'drew',
  'found',
  'forgot',
  'gave away',
  'hid',
  'lost',
  'measured',
  'noticed',
  'opened',
  'painted',
  'photographed',
  'repaired',
  'returned',
  'sold',
  'stored',
  'wrapped',
]

export const WEATHER = ['sunny', 'cloudy', 'rainy', 'windy', 'foggy', 'stormy', 'clear', 'snowy']

export const REASONS = [
  'because it was raining',
  'because the shop was closed',
  'although nobody had asked',
  'before the train arrived',
  'after the meeting',
  'while the others were sleeping',
  'so that everybody could see it',
  'when the lights went out',
  'without saying a word',
  'as soon as the door opened',
]

export const COMPONENTS = [
  'parser',
  'scheduler',
  'worker',
  'cache',
  'logger',
  'router',
  'session',
  'store',
  'tokenizer',
  'client',
  'server',
  'queue',
  'sampler',
  'trainer',
  'backend',
  'writer',
  'reader',
  'database',
  'connection',
  'request handler',
]

export const SYMPTOMS = [
  'drops the last message',
  'returns an empty list',
  'waits forever',
  'writes the same record twice',
  'uses too much memory',
  'fails on the second call',
  'ignores the timeout',
  'closes the connection too early',
  'reads the file before it exists',
  'counts from one instead of zero',
  'loses the order of events',
  'does not stop when it is cancelled',
]

export const REMEDIES = [
  'add a test that shows it, then move the check before the loop',
  'wait for the write to finish before the answer is sent',
  'keep the identifier with the record and ignore a second copy',
  'read the value once and pass it on',
  'close the handle in a finally block',
  'use a bounded queue and refuse what does not fit',
  'compare the lengths first and report a clear error',
  'pass the abort signal down to the call',
  'start counting at zero and cover the empty case',
  'store the order in a column and sort by it',
]

export const FILES = [
  'README.md',
  'package.json',
  'src/main.ts',
  'src/server.ts',
  'src/parser.py',
  'tests/test_parser.py',
  'config.yaml',
  'Makefile',
  'notes.txt',
  'data/results.csv',
  'lib/index.js',
  'docs/usage.md',
  'scripts/build.sh',
  'hello.py',
  'app/models.py',
]

export const SHELL_STEPS: readonly (readonly [
  task: string,
  command: string,
  output: string,
  answer: string,
])[] = [
  ['List the files', 'ls', '{file}\n{file2}', 'There are two files: {file} and {file2}.'],
  ['Show me what is in {file}', 'cat {file}', 'first line\nsecond line', 'The file {file} has two lines.'],
  ['How many lines has {file}?', 'wc -l {file}', '{n} {file}', '{file} has {n} lines.'],
  [
    'Find TODO in {file}',
    'grep -n TODO {file}',
    '{n}: # TODO: handle errors',
    'There is one TODO in {file}, on line {n}.',
  ],
  ['Run the tests', 'npm test', '{n} passed, 0 failed', 'All {n} tests passed.'],
  ['Run the python tests', 'pytest -q', '{n} passed in 1.2s', 'All {n} tests passed.'],
  ['Create an empty file {file}', 'touch {file}', '', 'I created {file}.'],
  ['Write hello into {file}', "echo 'hello' > {file}", '', 'I wrote hello into {file}.'],
  ['Which branch am I on?', 'git branch --show-current', 'main', 'You are on the branch main.'],
  ['What changed?', 'git status --short', ' M {file}', 'Only {file} has changed.'],
  ['Remove {file}', 'rm {file}', '', 'I removed {file}.'],
  ['Where am I?', 'pwd', '/home/user/project', 'You are in /home/user/project.'],
]

export const CODE_SNIPPETS: readonly (readonly [task: string, code: string])[] = [
  ['a Python function that adds two numbers', '```python\ndef add(a, b):\n    return a + b\n```'],
  ['a Python function that reverses a string', '```python\ndef reverse(text):\n    return text[::-1]\n```'],
  [
    'a Python function that counts words',
    '```python\ndef count_words(text):\n    counts = {}\n    for word in text.split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts\n```',
  ],
  [
    'a Python function for the factorial',
    '```python\ndef factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result\n```',
  ],
  [
    'a Python program that reads a file',
    '```python\nwith open("notes.txt") as file:\n    for line in file:\n        print(line.strip())\n```',
  ],
  [
    'a TypeScript function that sums a list',
    '```ts\nexport function sum(values: readonly number[]): number {\n  let total = 0\n  for (const value of values) total += value\n  return total\n}\n```',
  ],
  [
    'a TypeScript function that waits',
    '```ts\nexport function delay(ms: number): Promise<void> {\n  return new Promise((resolve) => setTimeout(resolve, ms))\n}\n```',
  ],
  [
    'a JavaScript function that finds the largest number',
    '```js\nfunction largest(numbers) {\n  return Math.max(...numbers)\n}\n```',
  ],
  ['a shell script that prints a greeting', '```bash\n#!/bin/sh\necho "hello, world"\n```'],
  [
    'an SQL query for the newest session',
    '```sql\nSELECT id, created_at FROM sessions ORDER BY created_at DESC LIMIT 1;\n```',
  ],
  ['a JSON document with a name and an age', '```json\n{"name": "Ada", "age": 36}\n```'],
]

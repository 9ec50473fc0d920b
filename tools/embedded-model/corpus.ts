/**
 * The training corpus: conversations generated from `corpus-text.ts` with a fixed seed, so that the model is
 * reproducible byte for byte on any machine.
 */
import { createSeededRandom, type RandomSource } from '../../src/embedded/engine/random.ts'
import * as text from './corpus-text.ts'

export interface CorpusMessage {
  role: 'system' | 'user' | 'assistant'
  /** The text as the chat template writes it, including tool calls and tool responses. */
  text: string
}

export type CorpusConversation = CorpusMessage[]

const SEED = 20_240_817
const SYSTEM: CorpusMessage = { role: 'system', text: 'You are a helpful assistant.' }

/** Number of conversations of each kind; together about 200 KB of text. */
const SHARES: readonly (readonly [count: number, make: (random: RandomSource) => CorpusConversation])[] = [
  [400, fixedDialogue],
  [260, storyDialogue],
  [160, debuggingDialogue],
  [20, weatherDialogue],
  [120, codeDialogue],
  [150, arithmeticDialogue],
  [25, calculatorDialogue],
  [35, shellDialogue],
]

export function makeCorpus(): CorpusConversation[] {
  const random = createSeededRandom(SEED)
  return SHARES.flatMap(([count, make]) => Array.from({ length: count }, () => [SYSTEM, ...make(random)]))
}

const user = (content: string): CorpusMessage => ({ role: 'user', text: content })
const assistant = (content: string): CorpusMessage => ({ role: 'assistant', text: content })
const toolResponse = (content: string) => user(`<tool_response>\n${content}\n</tool_response>`)

function assistantCall(name: string, args: Record<string, unknown>): CorpusMessage {
  const written = Object.entries(args).map(
    ([key, value]) => `${JSON.stringify(key)}: ${JSON.stringify(value)}`,
  )
  return assistant(`<tool_call>\n{"name": "${name}", "arguments": {${written.join(', ')}}}\n</tool_call>`)
}

function pick<T>(random: RandomSource, list: readonly T[]): T {
  return list[Math.floor(random() * list.length)]!
}

function integer(random: RandomSource, below: number): number {
  return Math.floor(random() * below)
}

function fixedDialogue(random: RandomSource): CorpusConversation {
  const turns = 1 + integer(random, 2)
  return Array.from({ length: turns }, () => pick(random, text.DIALOGUES)).flatMap(([question, answer]) => [
    user(question),
    assistant(answer),
  ])
}

function storySentence(random: RandomSource, person: string): string {
  const thing = `the ${pick(random, text.ADJECTIVES)} ${pick(random, text.THINGS)}`
  const rest = random() < 0.5 ? pick(random, text.PLACES) : pick(random, text.REASONS)
  return `${person} ${pick(random, text.PAST_VERBS)} ${thing} ${rest}.`
}

function storyDialogue(random: RandomSource): CorpusConversation {
  const person = pick(random, text.PEOPLE)
  const question = pick(random, [
    `Tell me about ${person}.`,
    `What did ${person} do yesterday?`,
    `Write two sentences about ${person}.`,
  ])
  const first = `${person} is a ${pick(random, text.JOBS)} from ${pick(random, text.CITIES)}.`
  return [user(question), assistant(`${first} Yesterday ${storySentence(random, person)}`)]
}

function debuggingDialogue(random: RandomSource): CorpusConversation {
  const component = pick(random, text.COMPONENTS)
  const symptom = pick(random, text.SYMPTOMS)
  const thought = `The user says that the ${component} ${symptom}. I should name the likely cause first.`
  const answer = `If the ${component} ${symptom}, I would ${pick(random, text.REMEDIES)}.`
  const reasoned = random() < 0.2 ? `<think>\n${thought}\n</think>\n\n${answer}` : answer
  return [user(`Our ${component} ${symptom}. What should we do?`), assistant(reasoned)]
}

function weatherDialogue(random: RandomSource): CorpusConversation {
  const city = pick(random, text.CITIES)
  const degrees = integer(random, 35)
  const weather = pick(random, text.WEATHER)
  return [
    user(`What is the weather like in ${city}?`),
    assistantCall('get_weather', { city }),
    toolResponse(`{"weather": "${weather}", "degrees": ${degrees}}`),
    assistant(`It is ${weather} in ${city}, with ${degrees} degrees.`),
  ]
}

function codeDialogue(random: RandomSource): CorpusConversation {
  const [task, code] = pick(random, text.CODE_SNIPPETS)
  return [user(`Write ${task}.`), assistant(`Here is ${task}:\n\n${code}`)]
}

interface Sum {
  expression: string
  result: number
}

function makeSum(random: RandomSource): Sum {
  const [a, b] = [1 + integer(random, 99), 1 + integer(random, 99)]
  return pick(random, [
    { expression: `${a} + ${b}`, result: a + b },
    { expression: `${a} - ${b}`, result: a - b },
    { expression: `${a} * ${b}`, result: a * b },
    { expression: `${a * b} / ${b}`, result: a },
  ])
}

function arithmeticDialogue(random: RandomSource): CorpusConversation {
  const { expression, result } = makeSum(random)
  return [user(`What is ${expression}?`), assistant(`${expression} is ${result}.`)]
}

function calculatorDialogue(random: RandomSource): CorpusConversation {
  const { expression, result } = makeSum(random)
  return [
    user(`Compute ${expression} with the calculator.`),
    assistantCall('calculator', { expression }),
    toolResponse(String(result)),
    assistant(`The answer is ${result}.`),
  ]
}

function shellDialogue(random: RandomSource): CorpusConversation {
  const values: Record<string, string> = {
    file: pick(random, text.FILES),
    file2: pick(random, text.FILES),
    n: String(1 + integer(random, 60)),
  }
  const [task, command, output, answer] = pick(random, text.SHELL_STEPS).map((template) =>
    template.replace(/\{(\w+)\}/g, (_, name: string) => values[name]!),
  ) as [string, string, string, string]
  return [user(task), assistantCall('bash', { command }), toolResponse(output), assistant(answer)]
}

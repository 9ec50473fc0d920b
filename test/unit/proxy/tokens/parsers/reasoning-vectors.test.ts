/** Our parsers read a completion as engines' own parsers do: SGLang's for reasoning, OpenAI's for harmony. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { findParser } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { mergeDeltas, parseComplete } from '../../../../helpers/parsed-output.ts'
import { TOOLS } from './parse.ts'

function read<Vectors>(name: string): Vectors {
  return JSON.parse(readFileSync(new URL(`./fixtures/${name}.json`, import.meta.url), 'utf8')) as Vectors
}

interface ReasoningVectors {
  sglang: string
  vectors: {
    parser: string
    detector: string
    text: string
    opened: boolean
    reasoning: string
    content: string
  }[]
}

const { sglang, vectors } = read<ReasoningVectors>('sglang-reasoning')

for (const parser of new Set(vectors.map((vector) => vector.parser))) {
  t.test(
    `${parser}: reasoning as parsed by SGLang ${sglang}, complete and character by character`,
    async (t) => {
      const own = vectors.filter((vector) => vector.parser === parser)
      t.ok(own.length > 30)
      for (const { text, opened, reasoning, content, detector } of own) {
        const options = { tools: null, startsInReasoning: opened }
        const full = parseComplete(findParser(parser).create(options), text)
        const read = { reasoning: full.reasoning ?? '', content: full.content }
        t.same(read, { reasoning, content }, `${detector}: ${JSON.stringify(text)}`)
        const cut = findParser(parser).create(options)
        const deltas = [...text].map((character) => cut.push(character))
        t.same(mergeDeltas([...deltas, cut.finish()]), full)
      }
    },
  )
}

interface HarmonyVectors {
  harmony: string
  vectors: {
    text: string
    reasoning: string[]
    content: string[]
    calls: { name: string; arguments: string }[]
  }[]
}

const { harmony, vectors: completions } = read<HarmonyVectors>('harmony')

t.test(`gpt-oss: completions as parsed by openai-harmony ${harmony}`, async (t) => {
  t.ok(completions.length > 60)
  for (const { text, reasoning, content, calls } of completions) {
    const found = parseComplete(findParser('harmony').create({ tools: TOOLS }), text)
    t.equal(found.reasoning ?? '', reasoning.join('\n'), text)
    t.equal(found.content, content.join('\n'), text)
    t.same(
      found.toolCalls.map((call) => call.function),
      calls,
      text,
    )
  }
})

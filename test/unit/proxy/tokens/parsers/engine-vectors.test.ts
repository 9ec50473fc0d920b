/** Our parsers read a text as SGLang's own parsers do, for every family that SGLang supports. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import { findParser } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { mergeDeltas, type ParsedOutput, parseComplete } from '../../../../helpers/parsed-output.ts'

interface Vectors {
  sglang: string
  properties: Record<string, unknown>
  vectors: {
    parser: string
    detector: string
    text: string
    content: string
    calls: { name: string; arguments: unknown }[]
  }[]
}

const url = new URL('./fixtures/sglang.json', import.meta.url)
const { sglang, properties, vectors } = JSON.parse(readFileSync(url, 'utf8')) as Vectors
const tools: Tool[] = ['f', 'get_it'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties } },
}))

/**
 * Converts an output to SGLang's form. Trims the content, because white space around it belongs to the markup
 * for some parsers, and to the content for others.
 */
function toSglangOutput({ content, toolCalls }: ParsedOutput) {
  return {
    content: content.trim(),
    calls: toolCalls.map((call) => ({
      name: call.function.name,
      arguments: JSON.parse(call.function.arguments),
    })),
  }
}

for (const detector of new Set(vectors.map((vector) => vector.detector))) {
  t.test(
    `texts are parsed as by SGLang ${sglang}'s ${detector}, complete and character by character`,
    async (t) => {
      for (const { parser, text, content, calls } of vectors.filter(
        (vector) => vector.detector === detector,
      )) {
        const makeToolCallId = () => 'id'
        const full = parseComplete(findParser(parser).create({ tools, makeToolCallId }), text)
        t.same(toSglangOutput(full), { content: content.trim(), calls }, text)
        const cut = findParser(parser).create({ tools, makeToolCallId })
        const deltas = [...text].map((character) => cut.push(character))
        t.same(mergeDeltas([...deltas, cut.finish()]), full)
      }
    },
  )
}

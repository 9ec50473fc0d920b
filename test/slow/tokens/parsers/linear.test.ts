/** The work of a parser grows only with the text, whatever a model writes. */
import t from 'tap'
import { PARSER_FAMILIES } from '../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { JsonScanner } from '../../../../src/proxy/tokens/parsers/json-scanner.ts'
import type { ParserFamily } from '../../../../src/proxy/tokens/parsers/output-parser.ts'
import { RunScanner, TextReader } from '../../../../src/proxy/tokens/parsers/text-reader.ts'
import { MarkerSet } from '../../../../src/proxy/tokens/tokenizer/markers.ts'
import { OPEN_TOOL_CALLS } from '../../../helpers/open-tool-calls.ts'
import { IS_FULL } from '../../../helpers/tier.ts'
import { TOOLS } from '../../../unit/proxy/tokens/parsers/parse.ts'

/** Repeated text, for each family. */
const UNITS = [
  '\\"',
  '\\',
  '"',
  '\n',
  ' \n\t',
  '```\n',
  '{"',
  '{"a":',
  '[',
  'x"; ',
  '<',
  '<think>',
  '</think>',
]

function getUnits({ name, keepTokens }: ParserFamily): string[] {
  const openings = OPEN_TOOL_CALLS[name]!
  const markers = [...keepTokens, '<parameter=a>\n', '</parameter>\n', '<function=f>', '</function>']
  return [
    ...UNITS,
    ...markers,
    ...openings,
    ...openings.map((text) => markers.at(-1) + text),
    '</arg_value>x',
  ]
}

function run(family: ParserFamily, text: string, chunkLength: number): void {
  const parser = family.create({ tools: TOOLS })
  for (let from = 0; from < text.length; from += chunkLength)
    parser.push(text.slice(from, from + chunkLength))
  parser.finish()
}

let steps = 0
countIn(MarkerSet, 'step', () => 1)
countIn(JsonScanner, 'read', (end, [, from]) => (end as number) - (from as number))
countIn(RunScanner, 'read', (end, [, from]) => 1 + (end as number) - (from as number))
countIn(TextReader, 'oneOf', () => 1)
countIn(TextReader, 'atEnd', () => 1)

type Method = (...args: unknown[]) => unknown

/** Adds the number of characters that each call reads to the steps. */
function countIn(
  owner: { prototype: object },
  name: string,
  cost: (result: unknown, args: unknown[]) => number,
) {
  const prototype = owner.prototype as Record<string, Method>
  const method = prototype[name]!
  t.teardown(() => {
    prototype[name] = method
  })
  prototype[name] = function counted(this: unknown, ...args) {
    const result = method.apply(this, args)
    steps += cost(result, args)
    return result
  }
}

function getSteps(work: () => void): number {
  steps = 0
  work()
  return steps
}

for (const [name, family] of PARSER_FAMILIES) {
  const openings = IS_FULL ? OPEN_TOOL_CALLS[name]! : OPEN_TOOL_CALLS[name]!.slice(0, 1)
  const texts = ['', ...openings].flatMap((head) => getUnits(family).map((unit) => ({ head, unit })))

  t.test(`${name}: four times the text takes at most about four times the steps`, async (t) => {
    for (const { head, unit } of texts) {
      for (const chunkLength of [1, Number.POSITIVE_INFINITY]) {
        const [once, fourTimes] = [60, 240].map((times) =>
          getSteps(() => run(family, head + unit.repeat(times), chunkLength)),
        ) as [number, number]
        if (fourTimes > once * 4.5 + 100)
          t.fail(`${JSON.stringify({ head, unit })}: ${once} steps, then ${fourTimes}`)
      }
    }
    t.pass()
  })

  const longUnits = ['\\"', '\n', family.keepTokens.join(''), OPEN_TOOL_CALLS[name]![0]!]
  const longTexts = openings.flatMap((head) =>
    longUnits.map((unit) => head + unit.repeat(100_000 / Math.max(unit.length, 1))),
  )

  t.test(`${name}: a text in many chunks is not copied for each of them`, async (t) => {
    for (const text of longTexts) run(family, text, 2)
    t.pass('50,000 copies of each growing text would take minutes')
  })

  t.test(`${name}: a long text in one chunk is not copied for each of its blocks`, async (t) => {
    for (const text of longTexts) run(family, text.repeat(3), Number.POSITIVE_INFINITY)
    t.pass('a copy of what is left for each of thousands of blocks would take minutes')
  })
}

/** Readers of model output: tokens, markers, tool calls. */

import { MessagesStreamWriter } from '../../../src/proxy/dialects/messages/stream.ts'
import { PARSER_FAMILIES } from '../../../src/proxy/tokens/parsers/choose-parser.ts'
import { createForcedToolCallParser } from '../../../src/proxy/tokens/parsers/forced-tool-calls.ts'
import { JsonScanner } from '../../../src/proxy/tokens/parsers/json-scanner.ts'
import type { OutputParser, ParserFamily } from '../../../src/proxy/tokens/parsers/output-parser.ts'
import { readPythonCalls } from '../../../src/proxy/tokens/parsers/python-tool-calls.ts'
import { toJsonArguments, toJsonValue } from '../../../src/proxy/tokens/parsers/text-arguments.ts'
import { findTruncationState } from '../../../src/proxy/tokens/parsers/unfinished.ts'
import { AddedTokenFinder } from '../../../src/proxy/tokens/tokenizer/added-tokens.ts'
import { MarkerSearch, MarkerSet } from '../../../src/proxy/tokens/tokenizer/markers.ts'
import { StopStrings } from '../../../src/proxy/tokens/tokenizer/stop-strings.ts'
import { StreamingDecoder } from '../../../src/proxy/tokens/tokenizer/streaming-decoder.ts'
import { createPiece, type TokenPieces } from '../../../src/proxy/tokens/tokenizer/token-pieces.ts'
import { OPEN_TOOL_CALLS } from '../../helpers/open-tool-calls.ts'
import { createUnitCases, repeat, type Subject, times, UNITS } from './subject.ts'

const TOOLS = [{ type: 'function' as const, function: { name: 'f', parameters: { type: 'object' } } }]
const CHUNK_LENGTH = 64

function parse(parser: OutputParser, text: string, chunk: number): void {
  for (let from = 0; from < text.length; from += chunk) parser.push(text.slice(from, from + chunk))
  parser.finish()
}

/** Inputs: the beginning of a family's first call, followed by the parts of its markup, complete and split. */
function createFamilySubject(family: ParserFamily): Subject {
  const [opening = ''] = OPEN_TOOL_CALLS[family.name] ?? []
  const units = {
    escapes: UNITS.escapes!,
    newlines: '\n',
    'its markers': family.keepTokens.join('') || '<think>',
    'its tool calls': opening || '{}',
  }
  return {
    name: `parser ${family.name}`,
    covers: ['src/proxy/tokens/parsers/*'],
    cases: {
      ...createUnitCases(
        (text) => () => parse(family.create({ tools: TOOLS }), opening + text, CHUNK_LENGTH),
        units,
      ),
      'its markers, in one chunk': (n) => {
        const text = repeat(units['its markers'], n)
        return () => parse(family.create({ tools: TOOLS }), text, text.length)
      },
    },
  }
}

/** Tokens of one byte each, including characters that are never completed. */
const PIECES = Array.from({ length: 256 }, (_, id) => createPiece(Uint8Array.of(id)))
const BYTES: TokenPieces = {
  stripsFirstSpace: false,
  tokenToId: () => undefined,
  isSpecial: () => false,
  getPiece: (id) => PIECES[id]!,
}

/** Families with headers, with an opener of several words, and with a single-token opener. */
const OPENERS = ['harmony', 'gemma4', 'hermes']

/** Beginnings of numbers that another character follows. */
const NUMBER_UNITS = {
  digits: '1',
  zeros: '0',
  signs: '+',
  points: '.',
  'thousands with underscores': '1_000_',
}

export const MARKUP_SUBJECTS: readonly Subject[] = [
  ...[...PARSER_FAMILIES.values()].map(createFamilySubject),
  ...[...PARSER_FAMILIES.values()]
    .filter(({ name }) => OPENERS.includes(name))
    .map(
      (family): Subject => ({
        name: `truncation state, ${family.name}`,
        covers: ['src/proxy/tokens/parsers/unfinished.ts'],
        cases: createUnitCases((text) => () => findTruncationState(family, text, text, TOOLS), {
          'its markers': family.keepTokens.join('') || '<think>',
          'open headers': '<|start|>',
          'channels that do not end': '<|channel|>x',
          newlines: '\n',
        }),
      }),
    ),
  {
    name: 'forced tool calls',
    covers: ['src/proxy/tokens/parsers/*'],
    cases: createUnitCases((text) => () => {
      const family = PARSER_FAMILIES.get('hermes')!
      parse(
        createForcedToolCallParser(family, { tools: TOOLS }),
        `{"name": "f", "arguments": {"a": "${text}`,
        CHUNK_LENGTH,
      )
    }),
  },
  {
    name: 'JSON scanner',
    covers: ['src/proxy/tokens/parsers/*'],
    cases: createUnitCases((text) => () => new JsonScanner().read(`{"a": "${text}`, 0)),
  },
  {
    name: 'tool calls in Python',
    covers: ['src/proxy/tokens/parsers/*'],
    cases: {
      ...createUnitCases((text) => () => readPythonCalls(`[f(a="${text}`)),
      calls: (n) => {
        const text = `[${times(n / 10, () => 'f(a=1)').join(', ')}]`
        return () => readPythonCalls(text)
      },
      'an unfinished list': (n) => {
        const text = `[f(a=[${repeat('1, ', n)}`
        return () => readPythonCalls(text)
      },
    },
  },
  {
    name: 'arguments as text',
    covers: ['src/proxy/tokens/parsers/*'],
    cases: {
      many: (n) => {
        const many = times(n / 10, (index) => ({ name: `a${index}`, text: ' 5 ' }))
        return () => toJsonArguments('f', many, TOOLS)
      },
      ...createUnitCases((text) => () => toJsonArguments('f', [{ name: 'a', text, type: 'json' }], TOOLS)),
    },
  },
  {
    name: 'numbers as text',
    covers: ['src/proxy/tokens/parsers/*'],
    cases: {
      ...createUnitCases(
        (text) => () => ['', '1', '1.', '1e'].map((head) => toJsonValue(`${head}${text}x`, ['number'])),
        NUMBER_UNITS,
      ),
      'zeros of an integer': (n) => {
        const text = `${repeat('0', n)}x`
        return () => toJsonValue(text, ['integer'])
      },
    },
  },
  {
    name: 'the beginning of a call of LFM2',
    covers: ['src/proxy/tokens/parsers/lfm2.ts'],
    cases: createUnitCases(
      (text) => () =>
        parse(
          PARSER_FAMILIES.get('lfm2')!.create({ tools: TOOLS }),
          `<|tool_call_start|>${text}`,
          text.length,
        ),
      { spaces: ' ', 'open lists': '[', 'an open list': '[ ' },
    ),
  },
  {
    name: 'marker search',
    covers: ['src/proxy/tokens/tokenizer/markers.ts'],
    cases: {
      'a marker that almost matches': (n) => {
        const text = repeat('a', n)
        const markers = new MarkerSet([`${'a'.repeat(50)}b`, 'ab', '<think>'])
        return () => new MarkerSearch(markers).read(text, 0)
      },
      'many markers': (n) => {
        const names = times(n / 10, (index) => `<m${index}>`)
        return () => new MarkerSet(names)
      },
    },
  },
  {
    name: 'responses in a dialect',
    covers: ['src/proxy/dialects/messages/stream.ts'],
    cases: {
      'white space in chunks': (n) => () => {
        const responseOptions = { logprobs: false, tokenIds: false, reasoning: true, streamUsage: true }
        const writer = new MessagesStreamWriter({ turnId: 'a', createdS: 1, model: 'm' }, responseOptions)
        writer.write([{ type: 'start', engine: 'e' }])
        for (let index = 0; index < n / 4; index += 1) writer.write([{ type: 'delta', content: '    ' }])
      },
    },
  },
  {
    name: 'stop strings',
    covers: ['src/proxy/tokens/tokenizer/stop-strings.ts'],
    cases: {
      'one that almost matches, character by character': (n) => () => {
        const stops = new StopStrings([`${'a'.repeat(30)}b`])
        for (let index = 0; index < n; index += 1) stops.push('a')
      },
    },
  },
  {
    name: 'added tokens in text',
    covers: ['src/proxy/tokens/tokenizer/added-tokens.ts'],
    cases: createUnitCases(
      (text) => () => [
        ...new AddedTokenFinder(
          new Map([
            ['<|end|>', 1],
            ['<', 2],
          ]),
        ).find(text),
      ],
      {
        'first characters': '<',
        'almost a token': '<|end|',
        tokens: '<|end|>',
      },
    ),
  },
  {
    name: 'incremental decoding',
    covers: ['src/proxy/tokens/tokenizer/streaming-decoder.ts', 'src/proxy/tokens/tokenizer/token-pieces.ts'],
    cases: {
      'characters that never end': (n) => () => {
        const decoder = new StreamingDecoder(BYTES)
        for (let index = 0; index < n; index += 1) decoder.push([index % 3 === 0 ? 0xf0 : 0x9f])
      },
      'half characters at once': (n) => {
        const ids = times(n, () => 0xe2)
        return () => new StreamingDecoder(BYTES).push(ids)
      },
    },
  },
]

/**
 * Every function that reads external input takes time in proportion to its input's length, tested with adversarial
 * inputs from n to 32n. Each file in a folder of readers is in the table, or listed with the reason why not.
 */
import { globSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { IS_FULL } from '../../helpers/tier.ts'
import { MARKUP_SUBJECTS } from './markup-subjects.ts'
import { ALLOWED_PER_DOUBLING, computeGrowth, type WorkFactory } from './measure.ts'
import { REQUEST_SUBJECTS } from './request-subjects.ts'
import { repeat, type Subject, times } from './subject.ts'
import { WIRE_SUBJECTS } from './wire-subjects.ts'

const ROOT = join(import.meta.dirname, '../../..')
const SUBJECTS: readonly Subject[] = [...WIRE_SUBJECTS, ...REQUEST_SUBJECTS, ...MARKUP_SUBJECTS]

/** Folders with readers of what clients, engines, workers and models write. */
const READERS = [
  'src/protocol/{canonical,json,token-ids}/*.ts',
  'src/proxy/dialects/**/*.ts',
  'src/proxy/engines/clients/*.ts',
  'src/proxy/engines/clients/wire/*.ts',
  'src/proxy/http/transport/json-body.ts',
  'src/protocol/worker/*.ts',
  'src/proxy/http/trainer/sessions/named-turns.ts',
  'src/proxy/relay/responses-v1.ts',
  'src/proxy/session/roles/**/*.ts',
  'src/proxy/session/matching/*.ts',
  'src/proxy/tokens/parsers/*.ts',
  'src/proxy/tokens/tokenizer/{added-tokens,markers,stop-strings,streaming-decoder,token-pieces}.ts',
]

/** Files there that iterate over no external input, or that only write. */
const EXCLUDED = [
  'src/protocol/json/detach-buffer.ts',
  // Types, and folds of events that add each event once.
  'src/protocol/canonical/{events,generation-log,messages,request,spans}.ts',
  'src/protocol/token-ids/{prompt-ids,prompt-lists,token-ids}.ts',
  'src/protocol/json/{json-member,growable-json}.ts',
  // Combines what the store has read and validated.
  'src/proxy/session/matching/{recorded-parent,session-turns}.ts',
  // Errors, in the proxy's own words.
  'src/proxy/dialects/common/{openai-error,request-errors}.ts',
  // Connections to engines, requests to them, and single-line values.
  'src/proxy/engines/clients/{auto-client,client-of-kind,endpoint,create-clients,token-text-reader}.ts',
  'src/proxy/engines/clients/wire/{connection,engine-response,failures,generation}.ts',
  'src/proxy/engines/clients/wire/server-version.ts',
  'src/proxy/engines/clients/wire/{server-client,session-tokens,remote-tokenizer}.ts',
  'src/proxy/engines/clients/wire/{models,request,score,weight-version,default-sampling}.ts',
  // Written by the proxy, and read with the frames' own schemas.
  'src/protocol/worker/{request-frames,reported-prompts}.ts',
]

for (const { name, cases, n = IS_FULL ? 8_000 : 4_000 } of SUBJECTS) {
  t.test(`${name}: 32 times the input takes about 32 times as long`, async (t) => {
    for (const [input, work] of Object.entries(cases)) {
      const { leastMs, mostMs, perDoubling } = computeGrowth(work, n)
      const finding = `${input}: ${leastMs.toFixed(3)} ms for ${n}, and up to ${mostMs.toFixed(1)} ms`
      t.ok(perDoubling <= ALLOWED_PER_DOUBLING, `${finding}; ${perDoubling.toFixed(2)} per doubling`)
    }
  })
}

t.test('every reader is covered', async (t) => {
  const expand = (patterns: readonly string[]) =>
    new Set(patterns.flatMap(expandBraces).flatMap((each) => globSync(each, { cwd: ROOT })))
  const covers = SUBJECTS.flatMap((subject) => subject.covers)
  const known = expand([...covers, ...EXCLUDED])
  const missing = [...expand(READERS)].filter((file) => !known.has(file))
  t.same(missing, [], 'each has adversarial inputs in this folder')
  for (const pattern of [...READERS, ...covers, ...EXCLUDED].flatMap(expandBraces))
    t.ok(globSync(pattern, { cwd: ROOT }).length > 0, `${pattern} matches files`)
})

/** Returns one pattern for each name in braces: `globSync` ignores a name that matches no file. */
function expandBraces(pattern: string): string[] {
  const [braces, names] = /\{([^}]*)\}/.exec(pattern) ?? []
  return names === undefined ? [pattern] : names.split(',').map((name) => pattern.replace(braces!, name))
}

/** Readers with typical mistakes; the measure must detect each. */
const QUADRATIC: Record<string, { n: number; work: WorkFactory }> = {
  'a reader that copies its buffer for each chunk': {
    n: 6_000,
    work: (n) => () => {
      let rest = Buffer.alloc(0)
      for (let read = 0; read < n; read += 16) rest = Buffer.concat([rest, Buffer.alloc(16)])
    },
  },
  'a reader that searches from the beginning for each chunk': {
    n: 60_000,
    work: (n) => {
      const bytes = Buffer.from(repeat('x', n))
      return () => {
        for (let read = 16; read < n; read += 16) if (bytes.subarray(0, read).includes('\n')) return
      }
    },
  },
  'a reader that searches all elements for each element': {
    n: 500,
    work: (n) => {
      const ids = times(n, (index) => `c${index}`)
      return () => ids.filter((id, index) => ids.lastIndexOf(id, index - 1) === -1)
    },
  },
  'a pattern that backtracks at each position': {
    n: 250,
    work: (n) => {
      const spaces = `${' '.repeat(n)}x`
      return () => /\s+$/.test(spaces)
    },
  },
}

for (const [reader, { n, work }] of Object.entries(QUADRATIC)) {
  t.test(`the measure detects ${reader}`, async (t) => {
    const { leastMs, mostMs, perDoubling } = computeGrowth(work, n, IS_FULL ? undefined : 1)
    t.ok(perDoubling > ALLOWED_PER_DOUBLING, `${leastMs} ms, up to ${mostMs} ms: ${perDoubling} per doubling`)
  })
}

/** Structurally invalid requests, derived from a valid one. */
import fc from 'fast-check'

type Json = null | boolean | number | string | Json[] | { [key: string]: Json }

/** A placeholder for nesting that is too deep for a JSON writer; {@link jsonText} replaces it. */
const DEEP = /"\u{1f573}(array|object) (\d+)"/gu

const deep = fc
  .tuple(fc.constantFrom('array', 'object'), fc.constantFrom(50, 1_000, 5_000, 20_000))
  .map(([kind, depth]): Json => `\u{1f573}${kind} ${depth}`)

const junk: fc.Arbitrary<Json> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.constantFrom<Json>(
      null,
      true,
      false,
      0,
      -1,
      1.5,
      1e300,
      -1e300,
      2 ** 53,
      2 ** 31,
      '',
      ' ',
      'x',
      '\u0000',
      '\ud800',
      'a\udc00b',
      'x'.repeat(5_000),
      'data:image/png;base64,',
      'http://[',
      '{"a":',
      '[]',
      [],
      {},
      [null],
      [[]],
      [{}],
      [''],
      { type: 'x' },
      { type: 7 },
      { type: 'text' },
      { type: 'text', text: null },
      { role: 'user' },
      { role: 'assistant', content: null },
      { type: 'function' },
    ),
  },
  { weight: 2, arbitrary: fc.jsonValue({ maxDepth: 3 }) as fc.Arbitrary<Json> },
  { weight: 1, arbitrary: deep },
)

const KEYS = [
  '__proto__',
  'constructor',
  'prototype',
  'toString',
  'hasOwnProperty',
  'length',
  'then',
  'toJSON',
  '',
  'type',
  'role',
  'content',
  'id',
  'name',
]

const change = fc.oneof(
  fc.record({ how: fc.constant('replace'), value: junk }),
  fc.record({ how: fc.constant('drop') }),
  fc.record({ how: fc.constant('repeat') }),
  fc.record({ how: fc.constant('wrap'), inObject: fc.boolean() }),
  fc.record({ how: fc.constant('copyFrom'), from: fc.nat() }),
  fc.record({ how: fc.constant('rename'), key: fc.constantFrom(...KEYS) }),
  fc.record({ how: fc.constant('addKey'), key: fc.constantFrom(...KEYS), value: junk }),
  fc.record({ how: fc.constant('retype') }),
)
type Change = typeof change extends fc.Arbitrary<infer C> ? C : never

/** Generates bodies with one to four changes anywhere, as the text that is sent. */
export function createMutations(...bodies: readonly object[]): fc.Arbitrary<string> {
  const changes = fc.array(fc.tuple(fc.nat(), change), { minLength: 1, maxLength: 4 })
  return fc.tuple(fc.constantFrom(...bodies), changes).map(([body, changes]) => {
    const root: { body: Json } = { body: structuredClone(body) as Json }
    for (const [index, what] of changes) apply(root, index, what)
    return jsonText(root.body)
  })
}

/** Generates valid JSON texts that were truncated or contain junk. */
export function createBrokenTexts(...bodies: readonly object[]): fc.Arbitrary<string> {
  const junk = fc.constantFrom(
    '',
    '"',
    '\\',
    '{',
    ']',
    ',',
    'NaN',
    '-Infinity',
    '\n\n',
    'data: ',
    '\u0000',
    '\ud800',
    '1e999',
  )
  const break_ = fc.tuple(fc.nat(), fc.nat({ max: 40 }), junk)
  return fc
    .tuple(fc.constantFrom(...bodies.map((body) => JSON.stringify(body))), break_)
    .map(([text, [index, dropped, put]]) => {
      const from = index % (text.length + 1)
      return text.slice(0, from) + put + (dropped === 40 ? '' : text.slice(from + dropped))
    })
}

/** The location of a value. The keys of arrays are their indexes. */
interface Location {
  readonly parent: { [key: string]: Json } | Json[]
  readonly key: string
}

function listLocations(parent: Location['parent']): Location[] {
  return Object.entries(parent).flatMap(([key, value]) => [
    { parent, key },
    ...(typeof value === 'object' && value !== null ? listLocations(value) : []),
  ])
}

function apply(root: { body: Json }, index: number, change: Change): void {
  const locations = listLocations(root)
  const location = locations[index % locations.length]
  if (location === undefined) return
  const { parent, key } = location
  const value = getValue(location)
  if (change.how === 'replace') put(parent, key, structuredClone(change.value))
  else if (change.how === 'wrap') put(parent, key, change.inObject ? { [key]: value } : [value])
  else if (change.how === 'copyFrom')
    put(parent, key, structuredClone(getValue(locations[change.from % locations.length]!)))
  else if (change.how === 'retype') put(parent, key, retype(value))
  else if (change.how === 'drop') drop(location)
  else if (change.how === 'repeat') repeat(location)
  else if (change.how === 'rename') {
    drop(location)
    put(parent, change.key, value)
  } else
    put(
      typeof value === 'object' && value !== null ? value : parent,
      change.key,
      structuredClone(change.value),
    )
}

function getValue({ parent, key }: Location): Json {
  return (parent as { [key: string]: Json })[key]!
}

/** Sets a value, also under a name such as `__proto__`. */
function put(parent: Location['parent'], key: string, value: Json): void {
  if (Array.isArray(parent)) parent.splice(Number(key) || 0, 1, value)
  else Object.defineProperty(parent, key, { value, enumerable: true, configurable: true, writable: true })
}

function drop({ parent, key }: Location): void {
  if (Array.isArray(parent)) parent.splice(Number(key), 1)
  else delete parent[key]
}

function repeat({ parent, key }: Location): void {
  const copy = structuredClone(getValue({ parent, key }))
  if (Array.isArray(parent)) parent.splice(Number(key), 0, copy)
  else put(parent, `${key}_2`, copy)
}

/** Returns the value with another type, as a careless client sends it. */
function retype(value: Json): Json {
  if (typeof value === 'string') return [value]
  if (typeof value === 'number') return String(value)
  if (typeof value === 'boolean') return String(value)
  if (value === null) return 'null'
  return Array.isArray(value) ? Object.fromEntries(value.entries()) : Object.values(value)
}

function jsonText(body: Json): string {
  // A dropped body becomes an empty text.
  return (JSON.stringify(body) ?? '').replaceAll(DEEP, (_, kind: string, depth: string) =>
    kind === 'array'
      ? '['.repeat(Number(depth)) + ']'.repeat(Number(depth))
      : `${'{"a":'.repeat(Number(depth))}1${'}'.repeat(Number(depth))}`,
  )
}

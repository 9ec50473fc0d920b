import fc from 'fast-check'
import t from 'tap'
import type { OptionSpec } from '../../../../src/proxy/config/option.ts'
import { SERVE } from '../../../../src/proxy/config/options/serve.ts'
import { describeExpectation, parseValue } from '../../../../src/proxy/config/values.ts'

const base = { flag: 'x', group: 'g', help: 'h' }
const option = (rest: object) => ({ ...base, ...rest }) as OptionSpec

t.test('a duration is parsed with its unit into milliseconds', async (t) => {
  const duration = option({ type: 'duration' })
  for (const [text, ms] of Object.entries({
    '500ms': 500,
    '30s': 30_000,
    '1.5m': 90_000,
    '2h': 7_200_000,
    '1d': 86_400_000,
    '5 S': 5_000,
    '0': 0,
  })) {
    t.equal(parseValue(duration, text), ms, text)
  }
})

t.test('a duration without a unit is in seconds', async (t) => {
  t.equal(parseValue(option({ type: 'duration' }), '300'), 300_000)
})

t.test("a duration beyond Node's timers is rejected unless the option allows it", async (t) => {
  t.equal(parseValue(option({ type: 'duration' }), '25d'), undefined)
  t.equal(parseValue(option({ type: 'duration', max: '3650d' }), '25d'), 25 * 86_400_000)
  t.ok(Number(parseValue(option({ type: 'duration' }), '24d')) < 2 ** 31, 'the limit fits a timer')
})

t.test('a size is parsed with binary and decimal units into bytes', async (t) => {
  const bytes = option({ type: 'bytes' })
  for (const [text, size] of Object.entries({
    '64MiB': 64 * 2 ** 20,
    '1.5KiB': 1536,
    '2GB': 2e9,
    '10kb': 10_000,
    '4096': 4096,
    '7B': 7,
  })) {
    t.equal(parseValue(bytes, text), size, text)
  }
})

t.test('limits are named in the expectation of a quantity, and are inclusive', async (t) => {
  const size = option({ type: 'bytes', min: '1KiB', max: '2KiB' })
  t.equal(parseValue(size, '1KiB'), 1024)
  t.equal(parseValue(size, '2048'), 2048)
  t.equal(parseValue(size, '1023'), undefined)
  t.equal(parseValue(size, '2049'), undefined)
  t.match(describeExpectation(size), 'from 1KiB to 2KiB')
})

t.test('only JSON objects are parsed as such', async (t) => {
  const json = option({ type: 'json' })
  t.strictSame(parseValue(json, '{"a": [1], "b": null}'), { a: [1], b: null })
  for (const text of ['', '{"a": 1', '[1]', 'null', '"a"', '1'])
    t.equal(parseValue(json, text), undefined, text)
})

t.test('a port is a whole number up to 65535', async (t) => {
  const port = option({ type: 'port' })
  t.equal(parseValue(port, '0'), 0)
  t.equal(parseValue(port, '65535'), 65535)
  for (const text of ['65536', '-1', '80.0', '0x50', '8e3', ' 80', '', 'http']) {
    t.equal(parseValue(port, text), undefined, JSON.stringify(text))
  }
})

t.test('a text that only begins like a quantity is rejected', async (t) => {
  for (const type of ['duration', 'bytes', 'number', 'integer'] as const) {
    for (const text of [
      '',
      'ten',
      '10 parsecs',
      '1e3',
      '-5',
      '.5',
      '5.',
      'NaN',
      'Infinity',
      '10constructor',
    ]) {
      t.equal(parseValue(option({ type }), text), undefined, `${type} ${JSON.stringify(text)}`)
    }
  }
})

t.test('an enum is case-insensitive and returns its own spelling', async (t) => {
  const mode = option({ type: 'enum', values: ['local', 'relay'] })
  t.equal(parseValue(mode, 'Relay'), 'relay')
  t.equal(parseValue(mode, 'relays'), undefined)
  t.equal(describeExpectation(mode), 'local or relay')
})

t.test('an enum accepts other common names of its values', async (t) => {
  const { logLevel } = SERVE.options
  const python = { WARNING: 'warn', critical: 'fatal', ERROR: 'error', Info: 'info', NOTSET: 'trace' }
  for (const [theirs, ours] of Object.entries(python)) t.equal(parseValue(logLevel, theirs), ours)
  t.equal(parseValue(logLevel, 'warnings'), undefined)
  t.equal(parseValue(logLevel, 'constructor'), undefined)
  t.equal(describeExpectation(logLevel), 'fatal, error, warn, audit, info, debug, trace or silent')
})

t.test('a boolean takes true, false, 1 and 0', async (t) => {
  const flag = option({ type: 'boolean', default: 'false' })
  t.equal(parseValue(flag, 'TRUE'), true)
  t.equal(parseValue(flag, '1'), true)
  t.equal(parseValue(flag, 'false'), false)
  t.equal(parseValue(flag, '0'), false)
  t.equal(parseValue(flag, 'yes please'), undefined)
})

t.test('a URL must be absolute, and http or https', async (t) => {
  const url = option({ type: 'url' })
  t.equal(parseValue(url, 'https://engine:8000/v1'), 'https://engine:8000/v1')
  for (const text of ['engine:8000', 'localhost', '/v1', 'ftp://engine', 'ws://engine', '']) {
    t.equal(parseValue(url, text), undefined, text)
  }
})

t.test('the address that a worker dials may be a name of several hosts', async (t) => {
  const url = option({ type: 'dialUrl' })
  for (const text of ['dns+ws://nodes:8080', 'dns+https://nodes', 'wss://node-1', 'http://node-1:8080/base'])
    t.equal(parseValue(url, text), text)
  for (const text of ['dns+ftp://nodes', 'dns:nodes', 'dns+nodes:8080', 'srv+ws://nodes'])
    t.equal(parseValue(url, text), undefined, text)
  t.equal(
    parseValue(option({ type: 'socketUrl' }), 'dns+ws://nodes'),
    undefined,
    'only workers look up names',
  )
})

t.test('a URL that could not be dialed is rejected: with a fragment, or without a host', async (t) => {
  for (const type of ['url', 'socketUrl', 'dialUrl'] as const) {
    const url = option({ type })
    for (const text of ['http://node-1:8080/#x', 'https://node-1/base#', 'http://'])
      t.equal(parseValue(url, text), undefined, `${type} ${text}`)
  }
  for (const text of ['dns+http://nodes#x', 'dns+ws://', 'DNS+http://#'])
    t.equal(parseValue(option({ type: 'dialUrl' }), text), undefined, text)
})

t.test('any integer with any unit is parsed exactly', async (t) => {
  const units = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 }
  const property = fc.property(
    fc.nat(500),
    fc.constantFrom(...Object.entries(units)),
    (count, [unit, ms]) => {
      return parseValue(option({ type: 'duration' }), `${count}${unit}`) === count * ms
    },
  )
  t.doesNotThrow(() => fc.assert(property))
})

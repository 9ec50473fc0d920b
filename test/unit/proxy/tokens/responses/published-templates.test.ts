/** Responses by published response templates, parsed as by transformers itself, in any chunks. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { PythonResponses } from '../../../../../src/proxy/tokens/templates/python/python-responses.ts'
import {
  findDifferences,
  mergeDeltas,
  type PublishedResponses,
  readChunks,
} from '../../../../helpers/read-responses.ts'

const FOLDER = join(import.meta.dirname, '../../../../../src/proxy/tokens/templates/python')
const fixture = JSON.parse(
  readFileSync(join(import.meta.dirname, 'fixtures/published.json'), 'utf8'),
) as PublishedResponses
const python = await PythonResponses.start()
const tools = JSON.stringify(fixture.tools)
const byTemplate = Object.entries(Object.groupBy(fixture.cases, ({ template }) => template))

for (const [name, cases] of byTemplate) {
  t.test(`${name}: complete and in chunks`, async (t) => {
    const template = python.open(JSON.stringify(fixture.templates[name]))
    for (const one of cases!) t.same(findDifferences(template, one, tools), [])
  })
}

t.test("transformers' parser imports only modules of its own folder", (t) => {
  const archive = readFileSync(join(FOLDER, 'vendor/transformers-5.24.0-chat_parsing.zip'), 'latin1')
  const imports = archive
    .match(/^(?:from|import) [\w. ]+/gm)!
    .map((line) => line.replace(/ import .*| as .*/, ''))
  t.same([...new Set(imports)].toSorted(), [
    'from ...utils',
    'from ..chat_template_utils',
    'from .content_parsers',
    'from .response_parser',
    'from .response_templates',
    'from __future__',
    'from collections.abc',
    'from copy',
    'from dataclasses',
    'from inspect',
    'from typing',
    'import json',
    'import math',
    'import regex',
  ])
  t.end()
})

const valid = fixture.templates['transformers gemma4'] as { fields: Record<string, object> }
const rejected: [title: string, template: object, message: RegExp][] = [
  ['no template', { fields: {} }, /fields must be a non-empty dict/],
  ['another version', { ...valid, version: 2 }, /version: 2/],
  ['an invalid pattern', { ...valid, start_anchor: undefined, start_anchor_pattern: '(' }, /start_anchor/],
  ['an unknown field', withField('audio', { open: '<a>' }), /audio/],
  [
    'reasoning other than text',
    withField('thinking', { open: '<t>', content: 'json' }),
    /cannot be streamed/,
  ],
  ['tool calls without an opening marker', withField('tool_calls', { content: 'json' }), /./],
  ['a pattern with a back-reference', withField('thinking', { open_pattern: '(a)\\1' }), /groupref/],
  ['a case-insensitive pattern', withField('thinking', { open_pattern: '(?i)a' }), /flags/],
]

function withField(name: string, field: object): object {
  return { ...valid, fields: { ...valid.fields, [name]: field } }
}

for (const [title, template, message] of rejected) {
  t.test(`${title} is rejected`, async (t) => {
    t.throws(() => python.open(JSON.stringify(template)), { code: 'config_invalid', message })
  })
}

t.test('without tools, a text like a tool call is sent as text immediately', async (t) => {
  const template = python.open(JSON.stringify(valid))
  const text = 'So: <|tool_call>call:f{a:5}<tool_call|> it is.'
  const deltas = readChunks(template, '<|turn>model\n', '[]', [...text])
  t.same(mergeDeltas(deltas), { content: text, reasoning: '', calls: [] })
  const sent = deltas.slice(0, text.indexOf('5}') + 1).map(({ content = '' }) => content)
  t.equal(sent.join(''), text.slice(0, text.indexOf('5}') + 1))
})

t.test('a malformed tool call is sent as it was written, and the text after it is parsed', async (t) => {
  const template = python.open(JSON.stringify(valid))
  for (const broken of [
    'call:f{a:',
    'call:f{a:NaN}',
    `call:f${'['.repeat(100_000)}`,
    'call:f{"a":"\\ud800"}',
  ]) {
    const text = `<|tool_call>${broken}<tool_call|> and <|tool_call>call:f{n:5}<tool_call|>`
    const merged = mergeDeltas(readChunks(template, '<|turn>model\n', tools, [text]))
    t.same(merged.calls.at(-1), { name: 'f', arguments: { n: 5 } })
    if (merged.calls.length === 1) t.equal(merged.content, `<|tool_call>${broken}<tool_call|> and`)
  }
})

/**
 * The presentation of the requests, messages and settings of a recorded turn, in a page and in a terminal.
 */
import t from 'tap'
import { diffLines, patchLines } from '../../../src/protocol/transcript/diff-lines.ts'
import { getContentText, getImages, getNewMessages } from '../../../src/protocol/transcript/messages.ts'
import { describeMissingText } from '../../../src/protocol/transcript/missing-text.ts'
import { getSettings } from '../../../src/protocol/transcript/settings.ts'
import { summarizeToolCall, ToolCallReader } from '../../../src/protocol/transcript/tool-calls.ts'
import { isBlank, revealExactly, revealInvisible } from '../../../src/protocol/transcript/visible.ts'

const createToolCall = (name: string, input: unknown) => ({
  function: { name, arguments: typeof input === 'string' ? input : JSON.stringify(input) },
})
const format = (lines: readonly { kind: string; text: string }[]) =>
  lines.map(({ kind, text }) => `${{ same: ' ', added: '+', removed: '-' }[kind] ?? ''}${text}`)

t.test('arguments are shown by their names, with texts unchanged and other values as JSON', async (t) => {
  const input = { command: 'cd /a\nls', timeout: 3, env: { A: '1' } }
  t.same(new ToolCallReader().read(createToolCall('Bash', input)), {
    name: 'Bash',
    fields: [
      { name: 'command', text: 'cd /a\nls' },
      { name: 'timeout', text: '3' },
      { name: 'env', text: '{\n  "A": "1"\n}' },
    ],
  })
  for (const broken of ['{"command": "l', '["ls"]', 'null', 'ls'])
    t.same(new ToolCallReader().read(createToolCall('Bash', broken)).fields, [{ name: '', text: broken }])
  t.same(new ToolCallReader().read({}), { name: '?', fields: [{ name: '', text: '' }] })
})

t.test(
  'edits are shown as differences, under the names of each agent, also several in one tool call',
  async (t) => {
    for (const [old, now] of [
      ['old_string', 'new_string'],
      ['old_str', 'new_str'],
      ['oldString', 'newString'],
    ] as const) {
      const edit = { path: 'a', [old]: 'x\ny', [now]: 'x\nz' }
      t.same(new ToolCallReader().read(createToolCall('edit', edit)).fields.at(-1), {
        name: `${old} → ${now}`,
        diff: [
          { kind: 'same', text: 'x' },
          { kind: 'removed', text: 'y' },
          { kind: 'added', text: 'z' },
        ],
      })
    }
    const edits = [
      { old_string: 'a', new_string: 'b' },
      { old_string: 'c', new_string: 'd', replace_all: true },
    ]
    const names = new ToolCallReader()
      .read(createToolCall('MultiEdit', { file_path: 'f', edits }))
      .fields.map(({ name }) => name)
    t.same(names, [
      'file_path',
      'edits[0].old_string → new_string',
      'edits[1].replace_all',
      'edits[1].old_string → new_string',
    ])
    t.match(new ToolCallReader().read(createToolCall('edit', { old_string: 'a' })).fields, [
      { name: 'old_string', text: 'a' },
    ])
  },
)

t.test('a file that is written again is shown as its changes, also after edits', async (t) => {
  const reader = new ToolCallReader()
  const write = (content: string) =>
    reader.read(createToolCall('Write', { file_path: 'a.py', content })).fields.at(-1)
  t.same(write('one\ntwo\n'), { name: 'content', text: 'one\ntwo\n' })
  reader.read(createToolCall('Edit', { file_path: 'a.py', old_string: 'two', new_string: '$& 2' }))
  const second = write('one\nthree\n')
  t.same(second && 'diff' in second && format(second.diff), [' one', '-$& 2', '+three'])
  reader.read(createToolCall('Edit', { file_path: 'a.py', old_string: 'not there', new_string: 'x' }))
  t.same(write('one\n'), { name: 'content', text: 'one\n' }, 'its present content is unknown')
  const other = { name: 'file_text', text: 'one\n' }
  t.same(reader.read(createToolCall('create', { path: 'b.py', file_text: 'one\n' })).fields.at(-1), other)
})

t.test('patches are shown as differences in any field, and other texts are not', async (t) => {
  const patch = '*** Begin Patch\n*** Update File: a\n@@\n same\n-x\n+y\n*** End Patch'
  const [field] = new ToolCallReader().read(createToolCall('apply_patch', { input: patch })).fields
  t.same(field && 'diff' in field && format(field.diff), [
    '*** Begin Patch',
    '*** Update File: a',
    '@@',
    ' same',
    '-x',
    '+y',
    '*** End Patch',
  ])
  t.ok(patchLines(`apply_patch <<'EOF'\n${patch}\nEOF`))
  t.ok(patchLines('diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y'))
  t.ok(patchLines('--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y'))
  t.equal(patchLines('- a list\n+ of marks\n--- a rule'), undefined)
})

t.test('unchanged lines far from a change are omitted, with their number', async (t) => {
  const lines = Array.from({ length: 20 }, (_, index) => `line ${index}`)
  const now = lines.with(10, 'changed')
  t.same(format(diffLines(lines.join('\n'), now.join('\n'))), [
    '… 7 lines',
    ...[' line 7', ' line 8', ' line 9', '-line 10', '+changed', ' line 11', ' line 12', ' line 13'],
    '… 6 lines',
  ])
  t.same(format(diffLines('', 'a\n')), ['+a'])
  t.same(diffLines('', ''), [])
})

t.test('texts that share nothing are shown completely, and quickly', async (t) => {
  const many = (word: string) => Array.from({ length: 20_000 }, (_, index) => `${word}${index}`).join('\n')
  const started = process.cpuUsage()
  const diff = diffLines(many('a'), many('b'))
  t.equal(diff.filter(({ kind }) => kind === 'removed').length, 20_000)
  t.equal(diff.filter(({ kind }) => kind === 'added').length, 20_000)
  t.ok(process.cpuUsage(started).user < 5_000_000)
})

t.test("a turn adds the new messages, without the echo of the assistant's message", async (t) => {
  const calls = [createToolCall('Bash', { command: 'ls' })]
  const before = { index: 3, request_messages: [], completion_text: 'I look. ', tool_calls: calls }
  const echo = { role: 'assistant', content: 'I look.', tool_calls: calls }
  const result = { role: 'tool', content: 'a.py' }
  const turn = { index: 4, completion_text: '', tool_calls: [], request_messages_from: 2 }
  t.same(getNewMessages({ ...turn, request_messages: [echo, result] }, before), {
    from: 2,
    echoOf: 3,
    messages: [result],
  })
  const other = { ...echo, content: 'I looked.' }
  t.same(getNewMessages({ ...turn, request_messages: [other, result] }, before).messages, [other, result])
  t.same(getNewMessages({ ...turn, request_messages: [echo] }, undefined).messages, [echo])
})

t.test('recorded images of a content are shown, and other parts by their kind', async (t) => {
  const png = 'data:image/png;base64,AA'
  const content = [
    { type: 'text', text: 'one' },
    { type: 'image_url', image_url: { url: png } },
    { type: 'image_url', image_url: { url: 'https://example.com/a.png' } },
    { type: 'image_url', image_url: { url: 'data:image/svg+xml;base64,AA' } },
    null,
  ]
  t.equal(getContentText(content), 'one\n[image_url]\n[image_url]\n[part]')
  t.same(getImages(content), [png])
  t.same([getContentText(null), getContentText('x'), getContentText({ a: 1 })], ['', 'x', '{"a":1}'])
})

t.test('settings are all fields of a request other than messages and prompt', async (t) => {
  const tools = [
    { type: 'function', function: { name: 'Bash', description: 'Runs.', parameters: { type: 'object' } } },
    { type: 'web_search' },
    { type: 'custom', name: 'patch', description: 'Patches.' },
  ]
  t.same(getSettings({ params: { prompt: 'x', model: 'm', temperature: 0.5, stop: ['a'] }, tools }), {
    params: [
      ['model', 'm'],
      ['temperature', '0.5'],
      ['stop', '["a"]'],
    ],
    tools: [
      { name: 'Bash', description: 'Runs.', parameters: { type: 'object' } },
      { name: 'web_search', description: '', parameters: undefined },
      { name: 'patch', description: 'Patches.', parameters: undefined },
    ],
  })
})

t.test('invisible characters in a text are named, and joined emoji stay intact', async (t) => {
  t.equal(revealInvisible('a\u001b[2J\u0007\u009b\r\nb\t'), 'a⟨ESC⟩[2J⟨BEL⟩⟨U+009B⟩⟨CR⟩\nb\t')
  t.equal(revealInvisible('\u202eevil\u{e0041}'), '⟨U+202E⟩evil⟨U+E0041⟩')
  t.equal(revealInvisible('\u{1f469}\u200d\u{1f4bb} می\u200cخواهم'), '\u{1f469}\u200d\u{1f4bb} می\u200cخواهم')
})

t.test('terminal colours are removed from text, but not from the text of tokens', async (t) => {
  const coloured = '\u001b[1;38:5:2m\u001b[Kok\u001b[m\u001b[K'
  t.equal(revealInvisible(coloured), 'ok')
  t.equal(revealExactly(coloured), '⟨ESC⟩[1;38:5:2m⟨ESC⟩[Kok⟨ESC⟩[m⟨ESC⟩[K')
  t.equal(revealInvisible('\u001b[1Aup \u001b]8;;http://a\u0007'), '⟨ESC⟩[1Aup ⟨ESC⟩]8;;http://a⟨BEL⟩')
  t.same(['\u001b[0m \n', '\u001b[0m.', ''].map(isBlank), [true, false, true])
})

t.test('a completion without text is described by its other content and its finish reason', async (t) => {
  const silent = {
    status: 'completed',
    completion_text: '',
    reasoning_content: null,
    tool_calls: [],
    finish_reason: 'stop',
  }
  t.equal(describeMissingText({ ...silent, completion_text: 'a' }), undefined)
  t.equal(describeMissingText({ ...silent, status: 'open' }), undefined, 'text may still follow')
  t.equal(describeMissingText(silent), 'no text (finish reason: stop)')
  t.equal(
    describeMissingText({
      ...silent,
      reasoning_content: 'Hm.',
      tool_calls: [{}, {}],
      finish_reason: 'length',
    }),
    'no text, only reasoning and 2 tool calls (finish reason: length)',
  )
  t.equal(
    describeMissingText({ ...silent, completion_text: ' \n', status: 'aborted', finish_reason: null }),
    'only white space as text (aborted)',
  )
  t.match(describeMissingText({ ...silent, completion_text: '\u001b[0m' }), /^only white space as text/)
  t.equal(describeMissingText({ ...silent, finish_reason: null }), 'no text (no finish reason)')
})

t.test('a tool call is summarized by its name and the first line of its main argument', async (t) => {
  const about = (input: unknown) => summarizeToolCall(createToolCall('f', input)).about
  t.equal(about({ description: 'Lists', command: 'cd /a\nls' }), 'cd /a')
  t.equal(about({ content: 'x', file_path: 'a.py' }), 'a.py')
  t.equal(about({ count: 3, other: 'y' }), 'y')
  t.equal(about({ count: 3 }), '')
  t.equal(about('not JSON\nat all'), 'not JSON')
  t.same(summarizeToolCall({}), { name: '?', about: '' })
})

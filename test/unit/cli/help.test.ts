import { join } from 'node:path'
import type { Command } from 'commander'
import t from 'tap'
import { addProductCommands } from '../../../src/cli/product-commands.ts'
import { buildProgram } from '../../../src/cli/program.ts'
import type { OptionTable } from '../../../src/proxy/config/option.ts'
import { SERVE } from '../../../src/proxy/config/options/serve.ts'
import { generatedText } from '../../helpers/generated-text.ts'

const HELP_TEXTS = join(import.meta.dirname, 'help')

/** Yields the program and each of its commands, with the words that a user types. */
function* getCommands(command: Command, path: string): Generator<[string, Command]> {
  yield [path, command]
  for (const child of command.commands) yield* getCommands(child, `${path} ${child.name()}`)
}

for (const [path, command] of getCommands(
  buildProgram('0.0.0', {}, addProductCommands, () => {}),
  'llm-proxy',
)) {
  t.test(`${path} --help is the reviewed text (UPDATE=1 writes it)`, async (t) => {
    command.configureOutput({ getOutHelpWidth: () => 100 })
    const help = command.helpInformation()
    t.equal(help, generatedText(join(HELP_TEXTS, `${path.replaceAll(' ', '-')}.txt`), help))
    t.ok(
      help.split('\n').every((line) => line.length <= 100),
      'no line is longer than 100 columns',
    )
  })
}

t.test('serve --help has the common options, --help-all every option', async (t) => {
  const help = (flag: string) => {
    const program = buildProgram('0.0.0', {}, addProductCommands, () => {})
    let text = ''
    for (const command of program.commands)
      command.configureOutput({ writeOut: (part) => (text += part), getOutHelpWidth: () => 100 })
    t.throws(() => program.parse(['serve', flag], { from: 'user' }), { name: 'CommanderError' })
    return text
  }
  const flagsIn = (text: string) => [...text.matchAll(/^ {2}(?:-\w, )?--([\w-]+)/gm)].map(([, flag]) => flag)
  const [shown, all] = [flagsIn(help('--help')), flagsIn(help('--help-all'))]
  t.ok(shown.length <= 30, `${shown.length} options`)
  t.ok(shown.includes('help-all'))
  for (const { flag, formerly } of Object.values(SERVE.options as OptionTable)) {
    t.ok(all.includes(flag), flag)
    t.notOk(all.includes(formerly), 'a former name is accepted, and not listed')
  }
})

t.test('the help of an unknown command is an error', async (t) => {
  for (const words of [
    ['front', '--help'],
    ['help', 'front'],
    ['sessions', 'front', '-h'],
  ]) {
    const program = buildProgram('0.0.0', {}, addProductCommands, () => {})
    t.throws(
      () => program.parse(words, { from: 'user' }),
      { code: 'commander.unknownCommand' },
      words.join(' '),
    )
  }
})

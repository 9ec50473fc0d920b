import { spawnSync } from 'node:child_process'
import t from 'tap'
import { completionScript } from '../../../src/cli/completion/scripts.ts'
import { completedCommands, SHELLS } from '../../../src/cli/completion/words.ts'
import { COMMANDS } from '../../../src/proxy/config/commands.ts'

const commands = completedCommands(COMMANDS)

/** What bash offers after this line; the last word is the one that is being typed. */
function offered(...words: string[]): string[] {
  const script = `${completionScript('bash', commands)}
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_llm_proxy
printf '%s\\n' "\${COMPREPLY[@]}"`
  const { stdout, stderr, status } = spawnSync('bash', ['-c', script, 'bash', 'llm-proxy', ...words], {
    encoding: 'utf8',
  })
  t.equal(status, 0, stderr)
  return stdout.split('\n').filter((line) => line !== '')
}

t.test('commands are completed, and those of a group after its name', async (t) => {
  t.ok(['serve', 'sessions', 'workers', 'pause', 'completion'].every((word) => offered('').includes(word)))
  t.same(offered('pa'), ['pause'])
  t.same(offered('sessions', 'sh'), ['show'])
  t.same(offered('completion', ''), [...SHELLS, '--help'])
})

t.test('options and their words are completed where the command is known', async (t) => {
  t.same(offered('serve', '--mode', ''), ['local', 'relay'])
  t.same(offered('serve', '--port', '8080', '--mode', 're'), ['relay'])
  t.same(offered('sessions', 'list', '--sta'), ['--status'])
  t.same(offered('sessions', 'list', '--status', 'act'), ['active'])
  t.same(offered('pause', '--status'), [], 'an option of another command is not')
})

t.test('where a file is asked for, files are completed; where a number is, nothing', async (t) => {
  t.same(offered('serve', '--db', 'package.js'), ['package.json'])
  t.same(offered('serve', '--port', ''), [])
})

t.test('each shell gets every option of every command, in a script that it can read', async (t) => {
  for (const shell of SHELLS) {
    const script = completionScript(shell, commands)
    for (const { options } of COMMANDS) {
      for (const { flag } of Object.values(options)) {
        t.ok(script.includes(shell === 'fish' ? ` -l ${flag} ` : `--${flag}`), `${shell} ${flag}`)
      }
    }
    if (spawnSync(shell, ['--version']).status !== 0) continue
    const read = spawnSync(shell, ['-n'], { input: script, encoding: 'utf8' })
    t.equal(read.stderr, '', shell)
  }
})

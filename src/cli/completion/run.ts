import { ProxyError } from '../../base/errors.ts'
import { COMMANDS } from '../../proxy/config/commands.ts'
import { completionScript } from './scripts.ts'
import { completedCommands, SHELLS } from './words.ts'

/**
 * `llm-proxy completion <shell>`. @returns the exit code
 * @throws ProxyError `config_invalid` for another shell
 */
export async function run(_config: object, [name]: string[]): Promise<number> {
  const shell = SHELLS.find((known) => known === name)
  if (shell === undefined) {
    throw new ProxyError('config_invalid', `there is no completion for ${name}: give ${SHELLS.join(', ')}`)
  }
  process.stdout.write(completionScript(shell, completedCommands(COMMANDS)))
  return 0
}

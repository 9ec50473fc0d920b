/** Alternatives to llm-proxy from PyPI, each installed once in a separate folder. */
import { join } from 'node:path'
import { run, UnsupportedMachineError } from '../../engines/vllm/install.ts'
import { CACHE, digest, installOnce } from '../../helpers/install-once.ts'

const PYTHON_CHECK_MS = 60_000

/**
 * Installs a peer.
 * @returns the folder of the installation, with programs in `bin`
 * @throws UnsupportedMachineError with the reason
 */
export async function installPeer(requirement: string, report: (text: string) => void): Promise<string> {
  const script = 'import ensurepip, platform, sys, venv; print(sys.version, platform.machine())'
  const python = await run('python3', ['-c', script], { limitMs: PYTHON_CHECK_MS }).catch((error) => {
    throw new UnsupportedMachineError('no Python 3 with venv', { cause: error })
  })
  const name = /^[\w-]+/.exec(requirement)![0]
  const venv = join(CACHE, `peer-${name}-${digest(requirement, python)}`)
  await installOnce(venv, async () => {
    report(`installing ${requirement} into ${venv}, once`)
    try {
      await run('python3', ['-m', 'venv', venv])
      const program = join(venv, 'bin/python')
      await run(program, ['-m', 'pip', 'install', '--quiet', 'uv'])
      await run(program, ['-m', 'uv', 'pip', 'install', '--quiet', '--python', program, requirement])
    } catch (error) {
      throw new UnsupportedMachineError(
        `${requirement} cannot be installed here: ${(error as Error).message}`,
      )
    }
  })
  return venv
}

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Reflection;
using System.Threading;
using System.Threading.Tasks;

namespace Bendybus.Interop
{
    /// <summary>Marks a method that shows one thing: it returns if that holds and throws if it does not.</summary>
    [AttributeUsage(AttributeTargets.Method)]
    public sealed class CheckAttribute : Attribute
    {
        /// <param name="partitions">The kinds of entities it is for; all of them if none is named.</param>
        public CheckAttribute(params int[] partitions)
        {
            Partitions = partitions.Length > 0 ? partitions : Stand.Kinds;
        }

        public int[] Partitions { get; }

        /// <summary>Whether it disturbs others, and so runs after them and by itself.</summary>
        public bool Alone { get; set; }
    }

    /// <summary>One check on one kind of entities.</summary>
    public sealed class Run
    {
        // Most of its time a check waits for the broker.
        private const int AtOnce = 6;
        private static readonly TimeSpan Patience = TimeSpan.FromSeconds(120);

        private readonly MethodInfo method;
        private readonly int partitions;

        private Run(MethodInfo method, int partitions)
        {
            this.method = method;
            this.partitions = partitions;
        }

        private bool Alone => method.GetCustomAttribute<CheckAttribute>().Alone;

        private string Name => $"{method.DeclaringType.Name}: {method.Name.Replace('_', ' ')}";

        private bool Passed { get; set; }

        /// <param name="arguments">Parts of the names of checks, and with a minus before them of those to leave out.</param>
        public static async Task<int> Main(string[] arguments)
        {
            var named = arguments.Where(each => !each.StartsWith("-")).ToArray();
            var without = arguments.Where(each => each.StartsWith("-")).Select(each => each.Substring(1)).ToArray();
            var runs = (
                from method in typeof(Run).Assembly.GetTypes().SelectMany(type => type.GetMethods())
                where method.IsDefined(typeof(CheckAttribute))
                from partitions in method.GetCustomAttribute<CheckAttribute>().Partitions
                select new Run(method, partitions)).ToList();
            var chosen = runs
                .Where(run => (named.Length == 0 || named.Any(run.IsCalled)) && !without.Any(run.IsCalled))
                .ToList();
            Console.WriteLine($".NET: {runs.Count} checks, {runs.Count - chosen.Count} left out");
            await RunAll(chosen.Where(run => !run.Alone), AtOnce);
            await RunAll(chosen.Where(run => run.Alone), 1);
            foreach (var kind in Stand.Kinds)
            {
                var ofKind = chosen.Where(run => run.partitions == kind).ToList();
                var passed = ofKind.Count(run => run.Passed);
                Console.WriteLine($".NET, {Stand.Describe(kind)}: {passed} passed, {ofKind.Count - passed} failed");
            }
            return chosen.Count > 0 && chosen.All(run => run.Passed) ? 0 : 1;
        }

        private bool IsCalled(string name) =>
            Name.IndexOf(name.Replace('_', ' '), StringComparison.OrdinalIgnoreCase) >= 0;

        private static async Task RunAll(IEnumerable<Run> runs, int atOnce)
        {
            using var free = new SemaphoreSlim(atOnce);
            await Task.WhenAll(runs.Select(async run =>
            {
                await free.WaitAsync();
                try
                {
                    await run.RunOne();
                }
                finally
                {
                    free.Release();
                }
            }));
        }

        private async Task RunOne()
        {
            var watch = Stopwatch.StartNew();
            var problem = await Problem();
            Passed = problem == null;
            var verdict = Passed ? "passed" : "FAILED";
            Console.WriteLine($"{verdict}  {partitions,2}  {Name} ({watch.Elapsed.TotalSeconds:0.0} s)");
            if (!Passed)
            {
                Console.WriteLine($"    {Describe(problem)}");
            }
        }

        private static string Describe(Exception problem)
        {
            if (problem is ExpectationException)
            {
                return problem.Message;
            }
            var lines = (problem.StackTrace ?? "").Split('\n');
            var ours = lines.FirstOrDefault(line => line.Contains(nameof(Interop))) ?? lines[0];
            return $"{problem.GetType().Name}: {problem.Message.Trim().Split('\n')[0]}\n    {ours.Trim()}";
        }

        private async Task<Exception> Problem()
        {
            try
            {
                await using var stand = new Stand(partitions);
                var task = Task.Run(() => (Task)method.Invoke(null, new object[] { stand }));
                if (await Task.WhenAny(task, Task.Delay(Patience)) != task)
                {
                    return new ExpectationException($"not done after {Patience.TotalSeconds} s");
                }
                await task;
                return null;
            }
            catch (Exception problem)
            {
                return problem;
            }
        }
    }
}

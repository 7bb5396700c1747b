/* Open MPI: allreduce of float32 by size. mpirun -np N mpi_allreduce OUT BYTES,BYTES,… */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  /* long enough for the system to give each process a core */
  for (const double until = MPI_Wtime() + 0.1; MPI_Wtime() < until;) {
  }
  FILE* out = rank == 0 ? fopen(argv[1], "w") : NULL;
  for (char* item = strtok(argv[2], ","); item != NULL; item = strtok(NULL, ",")) {
    const long bytes = atol(item), count = bytes / 4;
    long rounds = (1L << 25) / count;
    if (rounds < 8) rounds = 8;
    if (rounds > 40000) rounds = 40000;
    float* x = malloc(bytes);
    for (long i = 0; i < count; i++) x[i] = 1;
    double start = 0;
    for (long round = -3; round < rounds; round++) {
      if (round == 0) start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0) fprintf(out, "{\"bytes\": %ld, \"us\": %.4f}\n", bytes, (MPI_Wtime() - start) / rounds * 1e6);
    free(x);
  }
  if (out != NULL) fclose(out);
  MPI_Finalize();
  return 0;
}
